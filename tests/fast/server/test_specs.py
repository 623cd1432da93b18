"""A field that a client left out of a spec stays out, unless the contract says that the cloud fills it in: a
client that compares what it sent with what it gets, as Terraform does, takes anything else for a defect.
IAC-02.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from neocloud.control_plane.composition import SERVICES
from neocloud.core import contract
from neocloud.core.kind import Kind
from neocloud.testing.emulator import Emulator, emulator

CREATED = [kind for each in SERVICES for kind in each.kinds if "Create" in kind.verbs]
FILLED = "NON_EMPTY_DEFAULT"


def filled(given: Any, kept: Any, path: str = "spec") -> Iterator[str]:
    """Yield the fields that are in `kept` alone and that the contract does not mark as filled in."""
    for field, content in kept.ListFields():
        behaviors, here = contract.annotations(field).behaviors, f"{path}.{field.name}"
        if behaviors & {FILLED, "OUTPUT_ONLY", "PUBLIC_OUTPUT_ONLY"}:
            continue
        was_given = any(each.name == field.name for each, _ in given.ListFields())
        if field.message_type is not None and not field.is_repeated:
            yield from filled(getattr(given, field.name), content, here)
        elif not was_given:
            yield here


def all_set(message: Any, depth: int = 4) -> None:
    """Set every message inside, so that defaults of inner fields are applied, too."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is None or field.is_repeated or field.containing_oneof is not None or not depth:
            continue
        inner = getattr(message, field.name)
        inner.SetInParent()
        if not field.message_type.full_name.startswith("google."):
            all_set(inner, depth - 1)


@pytest.mark.parametrize("kind", CREATED, ids=lambda kind: kind.message)
@pytest.mark.parametrize("is_whole", [False, True], ids=["empty", "every part"])
def test_defaults_fill_only_what_the_contract_marks(kind: Kind, is_whole: bool) -> None:
    resource = contract.message(kind.message)()
    resource.metadata.name = "x"
    resource.spec.SetInParent()
    if is_whole:
        all_set(resource.spec)
    given = type(resource.spec).FromString(resource.spec.SerializeToString())
    kind.rules.defaults(resource)
    assert not list(filled(given, resource.spec))


VPC, COMPUTE, IAM = "nebius.vpc.v1", "nebius.compute.v1", "nebius.iam.v1"
DISK = {"type": "NETWORK_SSD", "size_gibibytes": "10"}


def specs(ids: dict[str, str]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return by service: the parent, and the smallest spec that a client may send."""
    project, tenant = ids["project"], ids["tenant"]
    return {
        "nebius.iam.v2.ProjectService": (tenant, {}),
        f"{IAM}.ServiceAccountService": (project, {}),
        f"{IAM}.GroupService": (tenant, {}),
        "nebius.iam.v2.AccessKeyService": (project, {"account": {"service_account": {"id": ids["account"]}}}),
        f"{VPC}.NetworkService": (project, {}),
        f"{VPC}.SubnetService": (project, {"network_id": ids["network"]}),
        f"{VPC}.PoolService": (
            project,
            {"version": "IPV4", "visibility": "PRIVATE", "cidrs": [{"cidr": "10.77.0.0/16"}]},
        ),
        f"{VPC}.AllocationService": (project, {"ipv4_private": {"subnet_id": ids["subnet"]}}),
        f"{VPC}.RouteTableService": (project, {"network_id": ids["network"]}),
        f"{VPC}.SecurityGroupService": (project, {"network_id": ids["network"]}),
        f"{VPC}.SecurityRuleService": (
            ids["group"],
            {"access": "ALLOW", "protocol": "TCP", "ingress": {"destination_ports": [22]}},
        ),
        f"{COMPUTE}.FilesystemService": (project, DISK),
        f"{COMPUTE}.DiskService": (project, DISK),
        f"{COMPUTE}.GpuClusterService": (project, {"infiniband_fabric": "fabric-1"}),
        f"{COMPUTE}.InstanceService": (
            project,
            {
                "resources": {"platform": "cpu-d3", "preset": "4vcpu-16gb"},
                "boot_disk": {
                    "attach_mode": "READ_WRITE",
                    "managed_disk": {
                        "name": "boot",
                        "spec": {
                            **DISK,
                            "source_image_family": {"image_family": "ubuntu24.04-driverless"},
                        },
                    },
                },
                "network_interfaces": [{"name": "eth0", "subnet_id": ids["subnet"], "ip_address": {}}],
            },
        ),
        "nebius.storage.v1.BucketService": (project, {}),
        "nebius.registry.v1.RegistryService": (project, {}),
    }


IDS = ("project", "tenant", "account", "network", "subnet", "group")
OF_THE_PROVIDER = tuple(specs(dict.fromkeys(IDS, "")))


@pytest.fixture(scope="module")
def emulated() -> Iterator[Emulator]:
    with emulator() as running:
        yield running


@pytest.fixture(scope="module")
def ids(emulated: Emulator) -> dict[str, str]:
    call, project = emulated.client.call, emulated.project_id
    subnet = call(f"{VPC}.SubnetService/List", {"parent_id": project}).items[0]
    groups = call(f"{VPC}.SecurityGroupService/List", {"parent_id": project}).items
    account = call(
        f"{IAM}.ServiceAccountService/Create", {"metadata": {"parent_id": project, "name": "robot"}}
    )
    return {
        "project": project,
        "tenant": emulated.tenant_id,
        "account": account.resource_id,
        "network": subnet.spec.network_id,
        "subnet": subnet.metadata.id,
        "group": next(group.metadata.id for group in groups if group.status.default),
    }


@pytest.mark.parametrize("service", OF_THE_PROVIDER)
def test_what_is_created_comes_back_as_it_was_sent(
    emulated: Emulator, ids: dict[str, str], service: str
) -> None:
    """Create with the least that a client may say, then Get, as the Terraform provider does."""
    parent, fields = specs(ids)[service]
    rpc = contract.method(f"{service}/Create")
    request = contract.from_dict(
        rpc.input, {"metadata": {"parent_id": parent, "name": "least"}, "spec": fields}
    )
    resource_id = emulated.client.wait(emulated.client.call(f"{service}/Create", request)).resource_id
    found = emulated.client.call(f"{service}/Get", {"id": resource_id})
    assert not list(filled(request.spec, found.spec))
