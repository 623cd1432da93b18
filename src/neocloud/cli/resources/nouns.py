"""Nouns of the command line: a table of the contract's services that this cloud serves.

A test compares this table with what the server serves, so neither can drift from the other.
"""

from collections.abc import Mapping

from neocloud.cli.resources.noun import Noun, Parent

CRUD = ("Create", "Get", "GetByName", "List", "Update", "Delete")

PRODUCTS: Mapping[str, tuple[Noun, ...]] = {
    "iam": (
        Noun("nebius.iam.v1.ProfileService", Parent.NOTHING, ("Get",), "The signed-in account."),
        Noun("nebius.iam.v2.TenantService", Parent.NOTHING, ("Get", "List"), "Tenants: a company or a team."),
        Noun(
            "nebius.iam.v2.ProjectService",
            Parent.TENANT,
            CRUD,
            "Projects: groups of resources in a tenant.",
            "--name risk",
        ),
        Noun(
            "nebius.iam.v1.ServiceAccountService",
            Parent.PROJECT,
            CRUD,
            "Service accounts: accounts for programs.",
            "--name pipeline --description 'Nightly training'",
        ),
        Noun(
            "nebius.iam.v1.AuthPublicKeyService",
            Parent.PROJECT,
            ("Create", "Get", "List", "ListByAccount", "Update", "Activate", "Deactivate", "Delete"),
            "Keys with which service accounts sign in.",
            '--account-service-account-id serviceaccount-e00abc --data "$(cat key.pub.pem)"',
        ),
        Noun(
            "nebius.iam.v2.AccessKeyService",
            Parent.PROJECT,
            (
                *("Create", "Get", "GetSecret", "List", "ListByAccount"),
                *("Update", "Activate", "Deactivate", "Delete"),
            ),
            "S3 access keys of service accounts.",
            "--account-service-account-id serviceaccount-e00abc --secret-delivery-mode EXPLICIT",
        ),
        Noun(
            "nebius.iam.v1.StaticKeyService",
            Parent.PROJECT,
            ("Issue", "Get", "GetByName", "List", "Delete"),
            "Long-lived tokens for clients that cannot renew tokens.",
            "--name pulls --account-service-account-id serviceaccount-e00abc --service CONTAINER_REGISTRY",
        ),
        Noun(
            "nebius.iam.v1.TenantUserAccountService",
            Parent.TENANT,
            ("Get", "List", "Block", "Unblock"),
            "User accounts; see also neo user.",
        ),
        Noun(
            "nebius.iam.v1.TenantUserAccountWithAttributesService",
            Parent.TENANT,
            ("Get", "List"),
            "User accounts with names and e-mail addresses.",
        ),
        Noun(
            "nebius.iam.v1.InvitationService",
            Parent.TENANT,
            ("Create", "Get", "List", "Update", "Delete"),
            "Invitations; `neo user invite` also issues the code.",
            "--email bob@bank.example",
        ),
        Noun(
            "nebius.iam.v1.SessionManagementService",
            Parent.NOTHING,
            ("Revoke",),
            "All sessions of an account; see also neo session.",
            "--tenant-user-account-id tenantuseraccount-e00abc",
        ),
        Noun(
            "nebius.iam.v1.FederatedCredentialsService",
            Parent.PROJECT,
            CRUD,
            "External workloads that may act as a service account.",
            "--name ci --oidc-provider-issuer-url https://issuer.example --federated-subject-id repo:bank/app"
            " --subject-id serviceaccount-e00abc",
        ),
        Noun(
            "neocloud.iam.v1.OidcFederationService",
            Parent.TENANT,
            (*CRUD, "SetClientSecret", "Activate", "Deactivate"),
            "OpenID providers through which people sign in.",
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
            "Members of groups.",
            "--parent-id group-e00abc --member-id serviceaccount-e00abc",
        ),
        Noun(
            "nebius.iam.v1.AccessPermitService",
            Parent.GIVEN,
            ("Create", "Get", "List", "Delete"),
            "Permissions of a group on a resource.",
            "--parent-id group-e00abc --resource-id project-e00abc --role editor",
        ),
        Noun(
            "neocloud.iam.v1.RoleService",
            Parent.NOTHING,
            ("Get", "List"),
            "Roles that an access permit can grant.",
        ),
    ),
    "vpc": (
        Noun(
            "nebius.vpc.v1.NetworkService",
            Parent.PROJECT,
            (*CRUD, "CreateDefault", "ListAggregated"),
            "Networks: resources in one network reach each other and nothing else.",
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
            "Subnets: ranges of a network for machines.",
            "--name workers --network-id vpcnetwork-e00abc --cidr 10.128.200.0/24",
            (("spec.ipv4_private_pools.pools", "--cidr"),),
        ),
        Noun(
            "nebius.vpc.v1.PoolService",
            Parent.PROJECT,
            (*CRUD, "ListBySourcePool", "ListAggregated"),
            "Pools: address ranges for networks.",
            "--name office --version IPV4 --visibility PRIVATE --cidr 172.20.0.0/16",
            (("spec.cidrs", "--cidr"),),
        ),
        Noun(
            "nebius.vpc.v1.AllocationService",
            Parent.PROJECT,
            (*CRUD, "ListByPool", "ListBySubnet", "ListAggregated"),
            "Allocations: reserved addresses.",
            "--name login --ipv4-public-subnet-id vpcsubnet-e00abc",
        ),
        Noun(
            "nebius.vpc.v1.RouteTableService",
            Parent.PROJECT,
            (*CRUD, "ListByNetwork", "ListAggregated"),
            "Route tables of subnets.",
            "--name inspected --network-id vpcnetwork-e00abc",
        ),
        Noun(
            "nebius.vpc.v1.RouteService",
            Parent.GIVEN,
            CRUD,
            "Routes of a route table.",
            "--parent-id vpcroutetable-e00abc --name out --destination-cidr 0.0.0.0/0"
            " --next-hop-default-egress-gateway",
        ),
        Noun(
            "nebius.vpc.v1.SecurityGroupService",
            Parent.PROJECT,
            (*CRUD, "ListByNetwork", "ListAggregated"),
            "Security groups: firewall rules for machines.",
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
            "Platforms and presets: the available machine shapes.",
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
            "The running machine of an instance.",
            "--instance-id computeinstance-e00abc",
        ),
        Noun(
            "nebius.compute.v1.DiskService",
            Parent.PROJECT,
            CRUD,
            "Disks; one machine at a time can write to each.",
            "--name data --size-gibibytes 100 --type NETWORK_SSD",
        ),
        Noun(
            "nebius.compute.v1.DiskSnapshotService",
            Parent.PROJECT,
            (*CRUD, "ListByDisk"),
            "Snapshots of disks.",
            "--name before-upgrade --source-disk-id computedisk-e00abc",
        ),
        Noun(
            "nebius.compute.v1.ImageService",
            Parent.PROJECT,
            (*CRUD, "GetLatestByFamily", "ListPublic"),
            "Images that disks are created from.",
            "--name golden --image-family golden --source-disk-id computedisk-e00abc",
        ),
        Noun(
            "nebius.compute.v1.GpuClusterService",
            Parent.PROJECT,
            CRUD,
            "Groups of machines that share an InfiniBand fabric.",
            "--name pretraining --infiniband-fabric fabric-2",
        ),
        Noun(
            "nebius.compute.v1.MaintenanceService",
            Parent.PROJECT,
            ("GetByInstance", "ListActive"),
            "Planned maintenance of machines.",
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
    "inference": (
        Noun(
            "neocloud.inference.v1.ModelService",
            Parent.PROJECT,
            CRUD,
            "Models and adapters that can be served; see also neo model.",
            "--name bank --source-folder /srv/models/bank",
            (("spec.source.folder", "--source-folder"),),
        ),
        Noun(
            "neocloud.inference.v1.DeploymentService",
            Parent.PROJECT,
            (*CRUD, "Wake", "ReadLog"),
            "Models being served; see also neo deploy and neo deployment.",
            "--name bank --model-id inferencemodel-e00abc --platform cpu-local --preset 2vcpu-4gb",
        ),
        Noun(
            "neocloud.inference.v1.BudgetService",
            Parent.PROJECT,
            CRUD,
            "Monthly token budgets of projects.",
            "--name monthly --monthly-limit 250.00",
        ),
    ),
    "tuning": (
        Noun(
            "neocloud.tuning.v1.FineTuningJobService",
            Parent.PROJECT,
            (
                *("Create", "Get", "GetByName", "List", "ListEvents", "ListCheckpoints", "ReadLog"),
                *("Cancel", "Pause", "Resume", "Delete"),
            ),
            "Fine-tuning jobs; see also neo tune.",
            "--model-id inferencemodel-e00abc --training-file file-1a2b"
            " --platform cpu-local --preset 2vcpu-8gb",
            called="job",
        ),
    ),
    "ai": (
        Noun(
            "nebius.ai.v1.EndpointService",
            Parent.PROJECT,
            ("Create", "Get", "GetByName", "List", "Start", "Stop", "Restart", "Delete"),
            "Container images that run until they are stopped.",
            "--name web --image localhost/neocloud/jail:1a2b --platform cpu-local --preset 2vcpu-4gb"
            " --disk-type NETWORK_SSD --container-command 'python3 -m http.server 8000'",
        ),
        Noun(
            "nebius.ai.v1.JobService",
            Parent.PROJECT,
            ("Create", "Get", "GetByName", "List", "Cancel", "Restart", "Delete"),
            "Container images that run until they end.",
            "--name nightly --image localhost/neocloud/jail:1a2b --platform cpu-local --preset 2vcpu-4gb"
            " --disk-type NETWORK_SSD --container-command 'python3 train.py' --restart-attempts 2",
        ),
    ),
    "billing": (
        Noun(
            "nebius.billing.v1.PricingPolicyService",
            Parent.PROJECT,
            CRUD,
            "Price limits of preemptible machines.",
            "--name cheap --platform gpu-h100-sxm --max-price 1.50",
            (
                ("spec.compute_instance_spec.v1.platform", "--platform"),
                ("spec.pricing.max_price_v1.max_price", "--max-price"),
            ),
        ),
    ),
}
