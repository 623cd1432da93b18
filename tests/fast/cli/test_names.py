"""Names in place of ids, wherever a request refers to something."""

from pathlib import Path

import pytest

from neocloud.cli.resources.lookup import CLUSTERS, MODELS, TUNING_JOBS, id_prefix_of
from neocloud.cli.resources.names import BY_FIELD
from neocloud.client.profiles import config_file, read_profiles
from neocloud.control_plane.composition import SERVICES
from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import PROJECT, TENANT, FakeServer, operation

DISKS = "nebius.compute.v1.DiskService"
SUBNETS = "nebius.vpc.v1.SubnetService"
SNAPSHOTS = "nebius.compute.v1.DiskSnapshotService"
INSTANCES = "nebius.compute.v1.InstanceService"
GROUPS = "nebius.iam.v1.GroupService"
PROJECTS = "nebius.iam.v2.ProjectService"
KEYS = "nebius.iam.v1.AuthPublicKeyService"
MEMBERS = "nebius.iam.v1.GroupMembershipService"


def named(service: str, kind: str, prefix: str, *known: str) -> dict[str, object]:
    def get_by_name(request: object) -> object:
        name = request.name  # pyright: ignore[reportAttributeAccessIssue]
        if name not in known:
            raise contract.not_found(kind, name)
        made = contract.method(f"{service}/GetByName").output()
        made.metadata.id, made.metadata.name = f"{prefix}-e00{name.replace('-', '')}", name
        return made

    return {f"{service}/GetByName": get_by_name}


def serve_list(cloud: FakeServer, service: str, *names: str) -> None:
    answer = {"items": [{"metadata": {"id": f"thing-e00{name}", "name": name}} for name in names]}
    cloud.serve(f"{service}/List", contract.from_dict(contract.method(f"{service}/List").output, answer))


@pytest.fixture
def served(cloud: FakeServer) -> FakeServer:
    for path, answer in (
        *named(DISKS, "disk", "computedisk", "data", "before-upgrade", "lab-e0012").items(),
        *named(GROUPS, "group", "group", "analysts").items(),
        *named("nebius.iam.v1.ServiceAccountService", "account", "serviceaccount", "pipeline").items(),
        *named(INSTANCES, "instance", "computeinstance", "web").items(),
        *named(PROJECTS, "project", "project", "trading").items(),
    ):
        cloud.serve(path, answer)
    for service in (SNAPSHOTS, MEMBERS, INSTANCES):
        for verb in ("Create", "Update"):
            cloud.serve(f"{service}/{verb}", operation("some-e00thing"))
        cloud.serve(f"{service}/Get", contract.method(f"{service}/Get").output())
    return cloud


def source(cloud: FakeServer) -> str:
    return cloud.asked(f"{SNAPSHOTS}/Create")[-1].spec.source_disk_id


def test_an_option_takes_a_name_or_an_id(signed_in: Neo, served: FakeServer) -> None:
    for given, expected in (
        ("data", "computedisk-e00data"),
        ("computedisk-e00other", "computedisk-e00other"),
        ("before-upgrade", "computedisk-e00beforeupgrade"),
        ("lab-e0012", "computedisk-e00labe0012"),
        ("computesnapshot-e00other", "computesnapshot-e00other"),
    ):
        ran = signed_in("compute", "disk-snapshot", "create", "today", "--source-disk-id", given)
        assert ran.code == 0, ran.err
        assert source(served) == expected


@pytest.mark.parametrize("name", ["lost", "default-data", "data-e00", "risk-models"])
def test_a_name_that_is_not_there_is_said(signed_in: Neo, served: FakeServer, name: str) -> None:
    serve_list(served, DISKS, "default-data-old")
    ran = signed_in("compute", "disk-snapshot", "create", "today", "--source-disk-id", name)
    assert ran.code == 3 and f"There is no disk '{name}'" in ran.err
    assert not served.asked(f"{SNAPSHOTS}/Create")


def test_json_takes_names_too(signed_in: Neo, served: FakeServer) -> None:
    disks = '[{"attach_mode": "READ_WRITE", "existing_disk": {"id": "data"}, "device_id": "data"}]'
    ran = signed_in("compute", "instance", "update", "web", "--secondary-disks", disks)
    assert ran.code == 0, ran.err
    camel = '[{"attachMode": "READ_WRITE", "existingDisk": {"id": "data"}, "deviceId": "data"}]'
    ran = signed_in("compute", "instance", "update", "web", "--secondary-disks", camel)
    assert ran.code == 0, ran.err
    one, other = served.asked(f"{INSTANCES}/Update")[-2:]
    assert one.spec == other.spec
    (attached,) = served.asked(f"{INSTANCES}/Update")[-1].spec.secondary_disks
    assert (attached.existing_disk.id, attached.device_id) == ("computedisk-e00data", "data")


def test_an_account_of_a_key_is_given_by_name(signed_in: Neo, served: FakeServer) -> None:
    lists = f"{KEYS}/ListByAccount"
    served.serve(lists, contract.method(lists).output())
    given = ("--account-service-account-id", "pipeline", "--project", "trading")
    ran = signed_in("iam", "auth-public-key", "list-by-account", *given)
    assert ran.code == 0, ran.err
    assert served.asked(lists)[-1].account.service_account.id == "serviceaccount-e00pipeline"
    accounts = served.asked("nebius.iam.v1.ServiceAccountService/GetByName")
    assert accounts[-1].parent_id == "project-e00trading"


@pytest.mark.parametrize("option", ["--parent-id", "--group"])
def test_a_parent_is_given_by_name(signed_in: Neo, served: FakeServer, option: str) -> None:
    ran = signed_in("iam", "group-membership", "create", option, "analysts", "--member-id", "pipeline")
    assert ran.code == 0, ran.err
    request = served.asked(f"{MEMBERS}/Create")[-1]
    assert request.metadata.parent_id == "group-e00analysts"
    assert request.spec.member_id == "serviceaccount-e00pipeline"
    assert served.asked(f"{GROUPS}/GetByName")[-1].parent_id == TENANT
    accounts = served.asked("nebius.iam.v1.ServiceAccountService/GetByName")
    assert accounts[-1].parent_id == PROJECT


@pytest.fixture
def allocations(served: FakeServer) -> str:
    for path, answer in named(SUBNETS, "subnet", "vpcsubnet").items():
        served.serve(path, answer)
    service = "nebius.vpc.v1.AllocationService"
    served.serve(f"{service}/Create", operation("vpcallocation-e00front"))
    served.serve(f"{service}/Get", contract.method(f"{service}/Get").output())
    return service


def test_the_default_subnet_is_found_without_the_end_of_its_name(
    signed_in: Neo, served: FakeServer, allocations: str
) -> None:
    serve_list(served, SUBNETS, "default-subnet-e00abc", "workers")
    ran = signed_in("vpc", "allocation", "create", "front", "--ipv4-public-subnet-id", "default-subnet")
    assert ran.code == 0, ran.err
    request = served.asked(f"{allocations}/Create")[-1]
    assert request.spec.ipv4_public.subnet_id == "thing-e00default-subnet-e00abc"


def test_of_several_default_subnets_none_is_taken(
    signed_in: Neo, served: FakeServer, allocations: str
) -> None:
    serve_list(served, SUBNETS, "default-subnet-e00abc", "default-subnet-e00def")
    ran = signed_in("vpc", "allocation", "create", "front", "--ipv4-public-subnet-id", "default-subnet")
    assert ran.code == 3 and "There are: default-subnet-e00abc, default-subnet-e00def" in ran.err
    assert not served.asked(f"{allocations}/Create")


def test_names_are_looked_up_in_the_project_of_the_command(signed_in: Neo, served: FakeServer) -> None:
    given = ("--source-disk-id", "data", "--project", "trading")
    ran = signed_in("compute", "disk-snapshot", "create", "today", *given)
    assert ran.code == 0, ran.err
    assert served.asked(f"{DISKS}/GetByName")[-1].parent_id == "project-e00trading"
    lists = f"{SNAPSHOTS}/ListByDisk"
    served.serve(lists, contract.method(lists).output())
    ran = signed_in("compute", "disk-snapshot", "list-by-disk", "--disk-id", "data", "--project", "trading")
    assert ran.code == 0, ran.err
    assert served.asked(f"{DISKS}/GetByName")[-1].parent_id == "project-e00trading"
    assert served.asked(lists)[-1].disk_id == "computedisk-e00data"


def test_names_in_an_update_are_those_of_the_project_of_the_resource(
    signed_in: Neo, served: FakeServer
) -> None:
    found = contract.method(f"{INSTANCES}/Get").output()
    found.metadata.id, found.metadata.parent_id = "computeinstance-e00web", "project-e00trading"
    served.serve(f"{INSTANCES}/Get", found)
    disks = '[{"existing_disk": {"id": "data"}}]'
    ran = signed_in("compute", "instance", "update", "computeinstance-e00web", "--secondary-disks", disks)
    assert ran.code == 0, ran.err
    assert served.asked(f"{DISKS}/GetByName")[-1].parent_id == "project-e00trading"


def test_a_project_has_a_name_in_every_product(signed_in: Neo, served: FakeServer) -> None:
    for command, path in (
        (("billing", "usage"), "neocloud.billing.v1.UsageService/ListUsage"),
        (("quota", "list"), "nebius.quotas.v1.QuotaAllowanceService/List"),
    ):
        served.serve(path, contract.method(path).output())
        ran = signed_in(*command, "--project", "trading")
        assert ran.code == 0, ran.err
        assert served.asked(path)[-1].parent_id == "project-e00trading"
    assert signed_in("config", "set-project", "trading").code == 0
    assert read_profiles(config_file()).items["test"].project_id == "project-e00trading"
    assert signed_in("config", "set-project", "trade").code == 3


def test_the_keys_of_labels_are_no_references(signed_in: Neo, served: FakeServer) -> None:
    given = ("--source-disk-id", "data", "--label", "project_id=trading", "--label", "disk_id=lost")
    ran = signed_in("compute", "disk-snapshot", "create", "today", *given)
    assert ran.code == 0, ran.err
    labels = served.asked(f"{SNAPSHOTS}/Create")[-1].metadata.labels
    assert dict(labels) == {"project_id": "trading", "disk_id": "lost"}


def test_only_text_of_a_file_is_a_name(signed_in: Neo, served: FakeServer, tmp_path: Path) -> None:
    manifest = tmp_path / "snapshot.yaml"
    manifest.write_text("spec: {source_disk_id: [1]}")
    ran = signed_in("compute", "disk-snapshot", "create", "today", "--file", str(manifest))
    assert ran.code == 2 and "source_disk_id" in ran.err and "Traceback" not in ran.err
    manifest.write_text("{metadata: {parent_id: 5}, spec: {source_disk_id: data}}")
    ran = signed_in("compute", "disk-snapshot", "create", "today", "--file", str(manifest))
    assert ran.code == 3 and "There is no project '5'" in ran.err


def test_a_file_takes_names_and_both_spellings_of_fields(
    signed_in: Neo, served: FakeServer, tmp_path: Path
) -> None:
    manifest = tmp_path / "snapshot.yaml"
    manifest.write_text("{metadata: {name: today, parentId: trading}, spec: {sourceDiskId: data}}")
    ran = signed_in("compute", "disk-snapshot", "create", "--file", str(manifest))
    assert ran.code == 0, ran.err
    request = served.asked(f"{SNAPSHOTS}/Create")[-1]
    assert request.metadata.parent_id == "project-e00trading"
    assert request.spec.source_disk_id == "computedisk-e00data"
    assert served.asked(f"{DISKS}/GetByName")[-1].parent_id == "project-e00trading"


@pytest.mark.parametrize("name", ["trading", "risk-models", "project-alpha"])
def test_a_project_is_given_by_name(signed_in: Neo, served: FakeServer, name: str) -> None:
    """Names of projects have the form of ids."""
    for path, answer in named(PROJECTS, "project", "project", name).items():
        served.serve(path, answer)
    assert signed_in("ps", "--project", name).code == 0
    assert served.asked(f"{PROJECTS}/GetByName")[-1].name == name


def test_prefixes_of_ids_are_those_of_the_services() -> None:
    kinds = [kind for service in SERVICES for kind in service.kinds if kind.verbs]
    prefixes = {kind.rpc: kind.id_prefix for kind in kinds}
    served_by = {**prefixes, PROJECTS: prefixes["nebius.iam.v1.ProjectService"]}
    wanted = {*BY_FIELD.values(), CLUSTERS, INSTANCES, MODELS, TUNING_JOBS}
    assert {service: id_prefix_of(service) for service in wanted} == {
        service: served_by[service] for service in wanted
    }
