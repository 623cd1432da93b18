"""An emulator with two tenants: one has people of four ranks who attack, the other must not notice."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from neocloud.client.connection import Client, connect_as
from neocloud.client.credentials import read_credentials
from neocloud.client.errors import ClientError
from neocloud.control_plane.composition import SERVICES
from neocloud.core import contract
from neocloud.testing.emulator import connected, emulator_process
from tests.fast.conformance.test_sdk_tier_1 import PUBLIC_KEY
from tests.real.security.fuzzing.requests import Known

MARKER = "only-the-victim-knows-7f3ac1"
"""Is in every text of the other tenant's: no answer to somebody else has it."""
UNHURRIED = ("--calls-per-second", "0", "--sign-ins-per-second", "0")
"""Limits of rates have tests of their own; here they would hide the rest."""
EXCHANGE = "nebius.iam.v1.TokenExchangeService/Exchange"
TOKEN_TYPE = "urn:ietf:params:oauth:token-type"
DISK = {
    "type": "NETWORK_SSD",
    "sizeGibibytes": 10,
    "sourceImageFamily": {"imageFamily": "ubuntu24.04-driverless"},
}


@dataclass
class Tenant:
    client: Client
    mark: str
    """Is in every text of the tenant."""
    tenant_id: str
    project_id: str
    held: dict[str, list[str]] = field(default_factory=dict)
    """Ids by prefix."""
    made: dict[str, Any] = field(default_factory=dict)
    """The request that worked, by method path."""

    def make(self, path: str, spec: Mapping[str, Any], *, parent: str = "", name: str) -> str:
        """Create something. Returns its id."""
        metadata = {"parent_id": parent or self.project_id, "name": name, "labels": {"note": self.mark}}
        request = contract.from_dict(contract.method(path).input, {"metadata": metadata, "spec": dict(spec)})
        resource_id = self.client.wait(self.client.call(path, request)).resource_id
        self.held.setdefault(contract.id_prefix(resource_id), []).append(resource_id)
        self.made[path] = request
        self._learn_update(path.partition("/")[0], resource_id)
        return resource_id

    def _learn_update(self, service: str, resource_id: str) -> None:
        """An Update that changes nothing, as it is sent by who read the resource before."""
        if f"{service}/Update" in contract.methods():
            found = self.client.call(f"{service}/Get", {"id": resource_id})
            update = contract.method(f"{service}/Update").input()
            update.metadata.CopyFrom(found.metadata)
            update.spec.CopyFrom(found.spec)
            self.made[f"{service}/Update"] = update

    def inventory(self) -> dict[str, list[bytes]]:
        """Everything the tenant has, by list method, without what a reconciler may change."""
        found: dict[str, list[bytes]] = {}
        for kind in (kind for service in SERVICES for kind in service.kinds if "List" in kind.verbs):
            for parent in (self.tenant_id, self.project_id):
                try:
                    items = list(self.client.list_all(f"{kind.rpc}/List", {"parent_id": parent}))
                except ClientError:
                    continue  # a list of tenants' things has no place in a project, and the other way round
                for item in items:
                    item.ClearField("status")
                found[f"{kind.rpc} {parent}"] = sorted(
                    item.SerializeToString(deterministic=True) for item in items
                )
        return found


@dataclass
class Target:
    """Both tenants, and the process that serves them."""

    victim: Tenant
    attacker: Tenant
    accounts: Mapping[str, str]
    """Service accounts of the attacker's tenant, by their rank."""
    grpc: str
    http: str
    log: Path
    process: psutil.Process

    def tokens(self) -> dict[str, str]:
        """New ones, by rank; the tenant's administrator is "admin"."""
        self.attacker.client.tokens.forget()
        admin = self.attacker.client.tokens.token()
        return {"admin": admin} | {rank: self._token_of(each, admin) for rank, each in self.accounts.items()}

    def _token_of(self, account_id: str, actor_token: str) -> str:
        request = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "requested_token_type": f"{TOKEN_TYPE}:access_token",
            "subject_token": account_id,
            "subject_token_type": "urn:nebius:params:oauth:token-type:subject_identifier",
            "actor_token": actor_token,
            "actor_token_type": f"{TOKEN_TYPE}:access_token",
        }
        return self.attacker.client.call(EXCHANGE, request).access_token

    def known(self) -> Known:
        """Return the names that the attacker can use: what it has, and by guess or gossip what the victim
        has.
        """
        both = (self.attacker, self.victim)
        prefixes = sorted({prefix for tenant in both for prefix in tenant.held})
        ids = {prefix: [one for each in both for one in each.held.get(prefix, ())] for prefix in prefixes}
        ids["tenant"] = [self.victim.tenant_id]
        ids["project"] = [self.attacker.project_id, self.victim.project_id]
        return Known(ids, self.attacker.made, self._page_tokens())

    def _page_tokens(self) -> Sequence[str]:
        lists = ("nebius.compute.v1.DiskService/List", "nebius.compute.v1.FilesystemService/List")
        request = {"parent_id": self.attacker.project_id, "page_size": 1}
        answers = [self.attacker.client.call(path, request) for path in lists]
        return [answer.next_page_token for answer in answers if answer.next_page_token]


@contextmanager
def target(home: Path) -> Iterator[Target]:
    """The first start makes one tenant, the second another beside it."""
    with emulator_process(home, options=(*UNHURRIED, "--tenant-name", "victim")), connected(home) as first:
        victim_ids = first.tenant_id, first.project_id
        credentials = read_credentials(home / "credentials.json")
    with emulator_process(home, options=(*UNHURRIED, "--tenant-name", "attacker")), connected(home) as second:
        process = psutil.Process(json.loads((home / "server.json").read_text())["pid"])
        with connect_as(credentials, second.endpoint) as client:
            victim = Tenant(client, MARKER, *victim_ids)
            attacker = Tenant(second.client, "attackers-own", second.tenant_id, second.project_id)
            for tenant in (victim, attacker):
                furnish(tenant)
            accounts = people(attacker)
            log = home / "server.log"
            yield Target(victim, attacker, accounts, second.endpoint, second.http_endpoint, log, process)


def furnish(tenant: Tenant) -> None:
    """One of nearly each kind. Two disks, so that their list has two pages."""
    compute, vpc, iam, name = "nebius.compute.v1", "nebius.vpc.v1", "nebius.iam.v1", tenant.mark
    subnet = tenant.client.call(f"{vpc}.SubnetService/List", {"parent_id": tenant.project_id}).items[0]

    def make(path: str, spec: Mapping[str, Any], **more: Any) -> str:
        return tenant.make(f"{path}/Create", spec, **{"name": name, **more})

    filesystem = {"type": "NETWORK_SSD", "sizeGibibytes": 1}
    for number in range(2):
        make(f"{compute}.FilesystemService", filesystem, name=f"{name}-{number}")
    _, disk_id = (make(f"{compute}.DiskService", DISK, name=f"{name}-{number}") for number in range(2))
    make(f"{compute}.ImageService", {"imageFamily": "own", "sourceDiskId": disk_id, "description": name})
    make(f"{compute}.DiskSnapshotService", {"sourceDiskId": disk_id})
    make(f"{compute}.GpuClusterService", {"infinibandFabric": "fabric-1"})
    account = make(f"{iam}.ServiceAccountService", {"description": name})
    make(f"{iam}.GroupService", {}, parent=tenant.tenant_id)
    key = {"account": {"serviceAccount": {"id": account}}, "data": PUBLIC_KEY, "description": name}
    make(f"{iam}.AuthPublicKeyService", key, name="")
    make(
        "nebius.iam.v2.AccessKeyService",
        {"account": {"serviceAccount": {"id": account}}, "description": name},
    )
    oidc = {"issuerUrl": "https://ci.example.com"}
    trust = {"oidcProvider": oidc, "federatedSubjectId": name, "subjectId": account}
    make(f"{iam}.FederatedCredentialsService", trust)
    own = {"issuerUrl": "https://sso.example.com", "clientId": name}
    make("neocloud.iam.v1.OidcFederationService", own, parent=tenant.tenant_id)
    policy = {
        "computeInstanceSpec": {"v1": {"platform": "gpu-h100-sxm"}},
        "pricing": {"maxPriceV1": {"maxPrice": "2"}},
    }
    make("nebius.billing.v1.PricingPolicyService", policy)
    network = make(f"{vpc}.NetworkService", {})
    table = make(f"{vpc}.RouteTableService", {"networkId": network})
    make(
        f"{vpc}.RouteService",
        {"destination": {"cidr": "10.1.0.0/16"}, "nextHop": {"defaultEgressGateway": True}},
        parent=table,
    )
    make(f"{vpc}.SubnetService", {"networkId": network, "ipv4PrivatePools": {"useNetworkPools": True}})
    make(
        f"{vpc}.PoolService",
        {"version": "IPV4", "visibility": "PRIVATE", "cidrs": [{"cidr": "10.91.0.0/16"}]},
    )
    make(f"{vpc}.AllocationService", {"ipv4Private": {"subnetId": subnet.metadata.id}})
    group = make(f"{vpc}.SecurityGroupService", {"networkId": network})
    rule = {"access": "ALLOW", "protocol": "TCP", "ingress": {"destinationPorts": [22]}}
    make(f"{vpc}.SecurityRuleService", rule, parent=group)
    boot = {"attachMode": "READ_WRITE", "managedDisk": {"name": "boot", "spec": DISK}}
    instance = {
        "resources": {"platform": "cpu-d3", "preset": "4vcpu-16gb"},
        "bootDisk": boot,
        "networkInterfaces": [{"name": "eth0", "subnetId": subnet.metadata.id, "ipAddress": {}}],
        "cloudInitUserData": f"#cloud-config\nhostname: {name}\n",
    }
    make(f"{compute}.InstanceService", instance)
    make(
        "neocloud.slurm.v1.ClusterService",
        {"nodeSets": [{"name": "a", "platform": "cpu-local", "preset": "1vcpu-4gb", "count": 1}]},
    )
    model = make("neocloud.inference.v1.ModelService", {"source": {"hub": {"id": "Qwen/Qwen3-0.6B"}}})
    gpu = {"platform": "gpu-h100-sxm", "preset": "1gpu-16vcpu-200gb"}
    make("neocloud.inference.v1.DeploymentService", {"modelId": model, **gpu, "scaling": {"minReplicas": 1}})
    make("neocloud.inference.v1.BudgetService", {"monthlyLimit": "10"})


def people(tenant: Tenant) -> dict[str, str]:
    """An editor, a viewer and an account without any right, in a project that no request names."""
    client, iam = tenant.client, "nebius.iam.v1"
    metadata = {"parent_id": tenant.tenant_id, "name": "people"}
    project = client.wait(client.call(f"{iam}.ProjectService/Create", {"metadata": metadata})).resource_id
    found = {}
    for rank, group in (("editor", "editors"), ("viewer", "viewers"), ("nobody", "")):
        request = {"metadata": {"parent_id": project, "name": rank}, "spec": {}}
        made = client.wait(client.call(f"{iam}.ServiceAccountService/Create", request))
        found[rank] = made.resource_id
        if group:
            named = {"parent_id": tenant.tenant_id, "name": group}
            group_id = client.call(f"{iam}.GroupService/GetByName", named).metadata.id
            member = {"metadata": {"parent_id": group_id}, "spec": {"member_id": made.resource_id}}
            client.wait(client.call(f"{iam}.GroupMembershipService/Create", member))
    return found
