"""Which nouns the command line offers: a table of the contract's services that this cloud serves.

Everything else about a noun (its verbs' flags, its columns) is read from the contract. A test compares this
table with what the server serves, so neither can drift from the other.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from neocloud.client.errors import ClientError
from neocloud.core import contract


class Parent(StrEnum):
    """What a noun belongs to, and so what `--parent-id` is when it is not given."""

    NOTHING = "nothing"
    TENANT = "tenant"
    PROJECT = "project"
    GIVEN = "given"
    """Something that the caller must name."""


@dataclass(frozen=True)
class Noun:
    service: str
    parent: Parent
    verbs: tuple[str, ...]
    about: str
    example: str = ""
    """Flags that a person would give on create, or else on the first verb."""
    shortcuts: tuple[tuple[str, str], ...] = ()
    """Shorter names of flags: the path of the field, and the other name."""

    @property
    def name(self) -> str:
        """ "nebius.iam.v1.ServiceAccountService" is `service-account`."""
        return kebab(self.service.rpartition(".")[2].removesuffix("Service"))

    @property
    def words(self) -> str:
        """For sentences: "service account"."""
        return self.name.replace("-", " ")

    @property
    def one(self) -> str:
        """With its article: "an access permit"."""
        return f"{'an' if self.name[0] in 'aeio' else 'a'} {self.words}"

    def rpc(self, verb: str) -> contract.Rpc:
        return load_method(f"{self.service}/{verb}")


OTHER_VERBS: Mapping[str, str] = {
    "Activate": "Let it be used again.",
    "BatchGet": "Show several at once.",
    "Block": "End its sessions and let it in no more.",
    "CreateDefault": "Make what a new project has, and wait until it is there.",
    "Deactivate": "Let it be used no more, until it is activated again.",
    "GetByInstance": "Show what is planned for one instance.",
    "GetLatestByFamily": "Show the newest one of a family.",
    "GetSecret": "Print its secret.",
    "GetWithAttributes": "Show one with the name and address of the account.",
    "ListActive": "List what is planned or under way.",
    "ListAggregated": "List those of all regions; this cloud has one, so it is the same as list.",
    "ListByAccount": "List those of one account.",
    "ListByDisk": "List those of one disk.",
    "ListByNetwork": "List those of one network.",
    "ListByPool": "List those of one pool.",
    "ListBySourcePool": "List those taken from one pool.",
    "ListBySubnet": "List those of one subnet.",
    "ListMemberOf": "List the groups that one account is in.",
    "ListMembers": "List who is in a group.",
    "ListMembersWithAttributes": "List who is in a group, with names and addresses.",
    "ListPublic": "List those that came with the cloud.",
    "ReadSerialLog": "Print what it wrote to its serial console.",
    "Revoke": "End them all.",
    "SetClientSecret": "Give it the secret that the provider has issued.",
    "Start": "Start it, and wait until it runs.",
    "Stop": "Stop it in order.",
    "Unblock": "Let it in again.",
}
"""What verbs do that not every noun has. "It" is the noun."""

CRUD = ("Create", "Get", "GetByName", "List", "Update", "Delete")

PRODUCTS: Mapping[str, tuple[Noun, ...]] = {
    "iam": (
        Noun("nebius.iam.v1.ProfileService", Parent.NOTHING, ("Get",), "Who you are signed in as."),
        Noun("nebius.iam.v2.TenantService", Parent.NOTHING, ("Get", "List"), "Tenants: a company or a team."),
        Noun(
            "nebius.iam.v2.ProjectService",
            Parent.TENANT,
            CRUD,
            "Projects: what belongs together in a tenant.",
            "--name risk",
        ),
        Noun(
            "nebius.iam.v1.ServiceAccountService",
            Parent.PROJECT,
            CRUD,
            "Accounts for programs.",
            "--name pipeline --description 'Nightly training'",
        ),
        Noun(
            "nebius.iam.v1.AuthPublicKeyService",
            Parent.PROJECT,
            ("Create", "Get", "List", "ListByAccount", "Update", "Activate", "Deactivate", "Delete"),
            "Keys that service accounts sign in with.",
            '--account-service-account-id serviceaccount-e00abc --data "$(cat key.pub.pem)"',
        ),
        Noun(
            "nebius.iam.v2.AccessKeyService",
            Parent.PROJECT,
            (
                *("Create", "Get", "GetSecret", "List", "ListByAccount"),
                *("Update", "Activate", "Deactivate", "Delete"),
            ),
            "Keys of service accounts for the S3 protocol.",
            "--account-service-account-id serviceaccount-e00abc --secret-delivery-mode EXPLICIT",
        ),
        Noun(
            "nebius.iam.v1.StaticKeyService",
            Parent.PROJECT,
            ("Issue", "Get", "GetByName", "List", "Delete"),
            "Long-lived tokens for clients that cannot renew one.",
            "--name pulls --account-service-account-id serviceaccount-e00abc --service CONTAINER_REGISTRY",
        ),
        Noun(
            "nebius.iam.v1.TenantUserAccountService",
            Parent.TENANT,
            ("Get", "List", "Block", "Unblock"),
            "Accounts of people; see also neo user.",
        ),
        Noun(
            "nebius.iam.v1.TenantUserAccountWithAttributesService",
            Parent.TENANT,
            ("Get", "List"),
            "Accounts of people with names and addresses.",
        ),
        Noun(
            "nebius.iam.v1.InvitationService",
            Parent.TENANT,
            ("Create", "Get", "List", "Update", "Delete"),
            "Invitations; `neo user invite` also makes the code.",
            "--email bob@bank.example",
        ),
        Noun(
            "nebius.iam.v1.SessionManagementService",
            Parent.NOTHING,
            ("Revoke",),
            "Ending all sessions of an account; see also neo session.",
            "--tenant-user-account-id tenantuseraccount-e00abc",
        ),
        Noun(
            "nebius.iam.v1.FederatedCredentialsService",
            Parent.PROJECT,
            CRUD,
            "Workloads elsewhere that may act as a service account.",
            "--name ci --oidc-provider-issuer-url https://issuer.example --federated-subject-id repo:bank/app"
            " --subject-id serviceaccount-e00abc",
        ),
        Noun(
            "neocloud.iam.v1.OidcFederationService",
            Parent.TENANT,
            (*CRUD, "SetClientSecret", "Activate", "Deactivate"),
            "OpenID providers that people may sign in at.",
            "--name corp --issuer-url https://login.example --client-id neocloud",
        ),
        Noun("nebius.iam.v1.GroupService", Parent.TENANT, CRUD, "Groups of accounts.", "--name analysts"),
        Noun(
            "nebius.iam.v1.GroupMembershipService",
            Parent.GIVEN,
            (
                *("Create", "Get", "GetWithAttributes", "Delete"),
                *("ListMembers", "ListMembersWithAttributes", "ListMemberOf"),
            ),
            "Who is in which group.",
            "--parent-id group-e00abc --member-id serviceaccount-e00abc",
        ),
        Noun(
            "nebius.iam.v1.AccessPermitService",
            Parent.GIVEN,
            ("Create", "Get", "List", "Delete"),
            "What a group may do, and where.",
            "--parent-id group-e00abc --resource-id project-e00abc --role editor",
        ),
        Noun(
            "neocloud.iam.v1.RoleService",
            Parent.NOTHING,
            ("Get", "List"),
            "Roles: what an access permit can give.",
        ),
    ),
    "vpc": (
        Noun(
            "nebius.vpc.v1.NetworkService",
            Parent.PROJECT,
            (*CRUD, "CreateDefault", "ListAggregated"),
            "Networks: what is in one can reach each other, nothing else.",
            "--name lab",
            (
                ("spec.ipv4_private_pools.pools", "--private-pool-id"),
                ("spec.ipv4_public_pools.pools", "--public-pool-id"),
            ),
        ),
        Noun(
            "nebius.vpc.v1.SubnetService",
            Parent.PROJECT,
            (*CRUD, "ListByNetwork", "ListAggregated"),
            "Subnets: ranges of a network that machines are put into.",
            "--name workers --network-id vpcnetwork-e00abc --cidr 10.128.200.0/24",
            (("spec.ipv4_private_pools.pools", "--cidr"),),
        ),
        Noun(
            "nebius.vpc.v1.PoolService",
            Parent.PROJECT,
            (*CRUD, "ListBySourcePool", "ListAggregated"),
            "Pools: ranges of addresses that networks take from.",
            "--name office --version IPV4 --visibility PRIVATE --cidr 172.20.0.0/16",
            (("spec.cidrs", "--cidr"),),
        ),
        Noun(
            "nebius.vpc.v1.AllocationService",
            Parent.PROJECT,
            (*CRUD, "ListByPool", "ListBySubnet", "ListAggregated"),
            "Addresses that are kept for somebody.",
            "--name login --ipv4-public-subnet-id vpcsubnet-e00abc",
        ),
        Noun(
            "nebius.vpc.v1.RouteTableService",
            Parent.PROJECT,
            (*CRUD, "ListByNetwork", "ListAggregated"),
            "Route tables: where the packets of a subnet go.",
            "--name inspected --network-id vpcnetwork-e00abc",
        ),
        Noun(
            "nebius.vpc.v1.RouteService",
            Parent.GIVEN,
            CRUD,
            "Routes of a table.",
            "--parent-id vpcroutetable-e00abc --name out --destination-cidr 0.0.0.0/0"
            " --next-hop-default-egress-gateway",
        ),
        Noun(
            "nebius.vpc.v1.SecurityGroupService",
            Parent.PROJECT,
            (*CRUD, "ListByNetwork", "ListAggregated"),
            "Security groups: who may talk to the machines in them.",
            "--name web --network-id vpcnetwork-e00abc",
        ),
        Noun(
            "nebius.vpc.v1.SecurityRuleService",
            Parent.GIVEN,
            CRUD,
            "Rules of a security group.",
            "--parent-id vpcsecuritygroup-e00abc --name https --access ALLOW --protocol TCP"
            " --ingress-source-cidrs 0.0.0.0/0 --ingress-destination-ports 443",
        ),
    ),
    "compute": (
        Noun(
            "nebius.compute.v1.PlatformService",
            Parent.PROJECT,
            ("GetByName", "List"),
            "Platforms and presets: the shapes a node can have.",
        ),
        Noun(
            "nebius.compute.v1.InstanceService",
            Parent.PROJECT,
            (*CRUD, "Start", "Stop", "BatchGet"),
            "Virtual machines.",
            "web --file machine.yaml",
        ),
        Noun(
            "neocloud.compute.v1.MachineService",
            Parent.NOTHING,
            ("Get", "ReadSerialLog"),
            "What the machine of an instance is doing.",
            "--instance-id computeinstance-e00abc",
        ),
        Noun(
            "nebius.compute.v1.DiskService",
            Parent.PROJECT,
            CRUD,
            "Disks, each written by one machine at a time.",
            "--name data --size-gibibytes 100 --type NETWORK_SSD",
        ),
        Noun(
            "nebius.compute.v1.DiskSnapshotService",
            Parent.PROJECT,
            (*CRUD, "ListByDisk"),
            "Copies of disks as they were.",
            "--name before-upgrade --source-disk-id computedisk-e00abc",
        ),
        Noun(
            "nebius.compute.v1.ImageService",
            Parent.PROJECT,
            (*CRUD, "GetLatestByFamily", "ListPublic"),
            "What disks start as.",
            "--name golden --image-family golden --source-disk-id computedisk-e00abc",
        ),
        Noun(
            "nebius.compute.v1.GpuClusterService",
            Parent.PROJECT,
            CRUD,
            "Machines that share an InfiniBand fabric.",
            "--name pretraining --infiniband-fabric fabric-2",
        ),
        Noun(
            "nebius.compute.v1.MaintenanceService",
            Parent.PROJECT,
            ("GetByInstance", "ListActive"),
            "Maintenance that is planned for machines.",
            "--instance-id computeinstance-e00abc",
        ),
        Noun(
            "nebius.compute.v1.FilesystemService",
            Parent.PROJECT,
            CRUD,
            "Shared file systems.",
            "--name data --size-gibibytes 10 --type NETWORK_SSD",
        ),
    ),
    "billing": (
        Noun(
            "nebius.billing.v1.PricingPolicyService",
            Parent.PROJECT,
            CRUD,
            "The most that a preemptible machine may cost.",
            "--name cheap --platform gpu-h100-sxm --max-price 1.50",
            (
                ("spec.compute_instance_spec.v1.platform", "--platform"),
                ("spec.pricing.max_price_v1.max_price", "--max-price"),
            ),
        ),
    ),
}


def load_method(path: str) -> contract.Rpc:
    try:
        return contract.method(path)
    except contract.ContractUnavailable as error:
        raise ClientError("FAILED_PRECONDITION", str(error)) from error


def kebab(camel: str) -> str:
    """ "GetByName" is `get-by-name`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", camel).lower()
