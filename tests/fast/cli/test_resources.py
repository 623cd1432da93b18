"""Commands derived from the contract: flags become requests, answers become tables."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from neocloud.cli.resources import deletion
from neocloud.cli.resources.flags import flags_of
from neocloud.cli.resources.lookup import closest_names
from neocloud.cli.resources.products import PRODUCTS
from neocloud.control_plane.composition import SERVICES
from neocloud.core import contract
from neocloud.core.kind import Violation
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import PROJECT, TENANT, FakeServer, operation
from tests.fast.cli.screen import on_screen

FILESYSTEMS = "nebius.compute.v1.FilesystemService"
PROJECTS = "nebius.iam.v2.ProjectService"
FORGOTTEN = contract.message("neocloud.operator.v1.ForgetResourceResponse")
HAND_MADE = {
    "neocloud.slurm.v1.ClusterService", "neocloud.slurm.v1.JobService",
    "neocloud.slurm.v1.BackupService", "neocloud.slurm.v1.RestService",
    "neocloud.slurm.v1.StorageAccessService", "neocloud.billing.v1.UsageService",
    "neocloud.iam.v1.SignInService", "neocloud.iam.v1.UserService", "neocloud.iam.v1.SessionService",
    "neocloud.iam.v1.SshKeyService",
    "nebius.iam.v1.TokenExchangeService", "nebius.common.v1.OperationService",
    "nebius.audit.v2.AuditEventService", "nebius.quotas.v1.QuotaAllowanceService",
    "nebius.billing.v1.CalculatorService", "nebius.billing.v1alpha1.CalculatorService",
    "neocloud.billing.v1.TcoService", "neocloud.billing.v1.TokenPriceService",
    "neocloud.inference.v1.GatewayService", "neocloud.operator.v1.ResourceService",
    "neocloud.tuning.v1.LineageService",
    "neocloud.storage.v1.ObjectGatewayService", "neocloud.storage.v1.TemporaryKeyService",
    "neocloud.fleet.v1.NodeService", "neocloud.fleet.v1.HealthCheckService",
    "neocloud.fleet.v1.BreakFixService", "neocloud.fleet.v1.MaintenanceWindowService",
    "neocloud.fleet.v1.VerdictService", "neocloud.fleet.v1.IncidentService",
    "neocloud.fleet.v1.CertificateService",
    "neocloud.ai.v1.LogService", "neocloud.billing.v1.CreditService", "neocloud.monitoring.v1.MetricsService",
    "neocloud.search.v1.SearchService",
}  # fmt: skip


SUPERSEDED = {
    "nebius.iam.v1.AccessKeyService", "nebius.iam.v1.ProjectService", "nebius.iam.v1.TenantService",
}  # fmt: skip
"""Older versions: the commands speak the newer one."""


def served_methods() -> set[str]:
    kinds = [kind for service in SERVICES for kind in service.kinds]
    standard = {f"{kind.rpc}/{verb}" for kind in kinds for verb in kind.verbs}
    standard |= {path for kind in kinds for path in kind.method_overrides.values()}
    custom = {method.path for service in SERVICES for method in service.methods}
    aliases = {alias.path for service in SERVICES for alias in service.aliases}
    apart = HAND_MADE | SUPERSEDED
    left_out = {
        f"{noun.service}/{verb}"
        for product in PRODUCTS.values()
        for noun in product.nouns
        for verb in noun.without
    }
    return {path for path in standard | custom | aliases if path.partition("/")[0] not in apart} - left_out


def test_the_products_offer_every_served_service_and_nothing_else() -> None:
    offered = {
        f"{noun.service}/{verb}"
        for product in PRODUCTS.values()
        for noun in product.nouns
        for verb in noun.verbs
    }
    assert offered == served_methods()


def filesystem(name: str = "data") -> Any:
    return contract.from_dict(
        contract.message("nebius.compute.v1.Filesystem"),
        {
            "metadata": {
                "id": f"computefilesystem-e00{name}",
                "parent_id": PROJECT,
                "name": name,
                "labels": {"team": "risk"},
            },
            "spec": {"size_gibibytes": "10", "type": "NETWORK_SSD"},
            "status": {"state": "READY", "size_bytes": "10737418240"},
        },
    )


@pytest.fixture
def served(cloud: FakeServer) -> FakeServer:
    found = filesystem()
    cloud.serve(f"{FILESYSTEMS}/Create", operation(found.metadata.id))
    cloud.serve(f"{FILESYSTEMS}/Update", operation(found.metadata.id))
    cloud.serve(f"{FILESYSTEMS}/Delete", operation(found.metadata.id))
    cloud.serve(f"{FILESYSTEMS}/Get", found)
    cloud.serve(f"{FILESYSTEMS}/List", contract.method(f"{FILESYSTEMS}/List").output(items=[found]))

    def by_name(request: Any) -> Any:
        if request.name != "data":
            raise contract.not_found("filesystem", request.name)
        return found

    cloud.serve(f"{FILESYSTEMS}/GetByName", by_name)
    return cloud


def test_create_takes_flags_from_the_fields_of_the_spec(signed_in: Neo, served: FakeServer) -> None:
    ran = signed_in(
        "compute", "filesystem", "create", "--name", "data", "--size-gibibytes", "10",
        "--type", "NETWORK_SSD", "--label", "team=risk",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    [request] = served.asked(f"{FILESYSTEMS}/Create")
    assert contract.to_dict(request) == {
        "metadata": {"parent_id": PROJECT, "name": "data", "labels": {"team": "risk"}},
        "spec": {"size_gibibytes": "10", "type": "NETWORK_SSD"},
    }
    assert "computefilesystem-e00data is created" in ran.err


def test_a_manifest_that_was_printed_can_be_given_back(
    signed_in: Neo, served: FakeServer, tmp_path: Path
) -> None:
    """Values that only the cloud sets (id, status) are left out; flags come on top."""
    manifest = tmp_path / "filesystem.yaml"
    manifest.write_text(signed_in("compute", "filesystem", "get", "data", "-o", "yaml").out)
    assert "size_gibibytes: 10\n" in manifest.read_text()
    signed_in("compute", "filesystem", "create", "--file", str(manifest), "--name", "copy")
    [request] = served.asked(f"{FILESYSTEMS}/Create")
    assert request.metadata.name == "copy"
    assert not request.metadata.id
    assert request.spec.size_gibibytes == 10


def test_an_update_names_what_was_given_and_nothing_else(signed_in: Neo, served: FakeServer) -> None:
    """A field set to its default (false) must be in the mask, or the cloud would keep the old value."""
    signed_in("compute", "filesystem", "update", "data", "--no-forbid-deletion", "--size-gibibytes", "20")
    [request] = served.asked(f"{FILESYSTEMS}/Update")
    assert request.metadata.id == "computefilesystem-e00data"
    assert request.spec.size_gibibytes == 20
    mask = served.headers(f"{FILESYSTEMS}/Update")["x-resetmask"].split(",")
    assert set(mask) == {"spec.forbid_deletion", "spec.size_gibibytes"}


def test_list_has_columns_from_the_contract(signed_in: Neo, served: FakeServer) -> None:
    lines = signed_in("compute", "filesystem", "list").out.splitlines()
    assert lines[0].split() == ["NAME", "STATE", "SIZE", "TYPE", "ID"]
    assert lines[1].split() == ["data", "READY", "10.0", "GiB", "NETWORK_SSD", "computefilesystem-e00data"]


def test_get_by_an_unknown_name_lists_the_known_ones(signed_in: Neo, served: FakeServer) -> None:
    ran = signed_in("compute", "filesystem", "get", "date")
    assert ran.code == 3
    assert ran.err == "neo: There is no filesystem 'date'. There are: data.\n"


def test_delete_by_name(signed_in: Neo, served: FakeServer) -> None:
    assert signed_in("compute", "filesystem", "delete", "data", "--yes").code == 0
    assert served.asked(f"{FILESYSTEMS}/Delete")[0].id == "computefilesystem-e00data"


@pytest.fixture
def stuck(served: FakeServer, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """A cloud in which the deletion of a filesystem does not end."""
    unfinished = operation(filesystem().metadata.id, done=False)
    monkeypatch.setattr(deletion, "WAIT_SECONDS", 0.0)
    served.serve(f"{FILESYSTEMS}/Delete", unfinished)
    served.serve("nebius.common.v1.OperationService/Get", unfinished)
    left = {
        "objects": [{"kind": "Pod", "namespace": "computefilesystem-e00data", "name": "copy"}],
        "folders": ["/var/lib/neocloud/volumes/computefilesystem-e00data"],
        "commands": ["podman ps --all"],
    }
    served.serve(deletion.FORGET, contract.from_dict(FORGOTTEN, {"left_behind": left}))
    return served


def refuse(code: contract.Code, message: str) -> Callable[[Any], Any]:
    def answer(request: Any) -> Any:
        raise contract.ApiError(code, message)

    return answer


FORCE = ("compute", "filesystem", "delete", "data", "--force")


def test_force_lists_what_is_left_behind(signed_in: Neo, stuck: FakeServer) -> None:
    ran = signed_in(*FORCE, "--yes")
    assert ran.code == 0, ran.err
    assert [request.id for request in stuck.asked(deletion.FORGET)] == ["computefilesystem-e00data"]
    assert "as free" in ran.err
    assert "removed from the control plane" in ran.out and "podman ps --all" in ran.out
    assert "/var/lib/neocloud/volumes/computefilesystem-e00data" in ran.out
    assert [line.split()[:2] for line in ran.out.splitlines() if "namespace" in line] == [["Pod", "copy"]]


def test_force_says_that_the_engine_did_not_answer(signed_in: Neo, stuck: FakeServer) -> None:
    answer = contract.from_dict(FORGOTTEN, {"left_behind": {"engine_error": "Podman did not start."}})
    stuck.serve(deletion.FORGET, answer)
    ran = signed_in(*FORCE, "--yes")
    assert ran.code == 0 and "is incomplete: Podman did not start." in ran.err


def test_force_is_not_used_where_a_deletion_ends(signed_in: Neo, served: FakeServer) -> None:
    ran = signed_in(*FORCE, "--yes")
    assert ran.code == 0 and "data is deleted" in ran.out
    assert not served.asked(deletion.FORGET)


def test_force_follows_a_deletion_that_has_failed(signed_in: Neo, stuck: FakeServer) -> None:
    stuck.serve(
        f"{FILESYSTEMS}/Delete", refuse(contract.Code.FAILED_PRECONDITION, "Is being deleted already.")
    )
    assert signed_in(*FORCE, "--yes").code == 0
    assert stuck.asked(deletion.FORGET)


def test_force_removes_nothing_that_may_not_be_deleted(signed_in: Neo, stuck: FakeServer) -> None:
    stuck.serve(f"{FILESYSTEMS}/Delete", refuse(contract.Code.FAILED_PRECONDITION, "It is attached to web."))
    stuck.serve(deletion.FORGET, refuse(contract.Code.FAILED_PRECONDITION, "It is not being deleted."))
    ran = signed_in(*FORCE, "--yes")
    assert ran.code == 1 and ran.err.endswith("neo: It is not being deleted.\n")
    assert "was not deleted. It is attached to web." in ran.err
    stuck.serve(f"{FILESYSTEMS}/Delete", refuse(contract.Code.PERMISSION_DENIED, "You may not."))
    stuck.requests.clear()
    assert signed_in(*FORCE, "--yes").code == 4
    assert not stuck.asked(deletion.FORGET)


def test_force_asks_and_waits(signed_in: Neo, stuck: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert signed_in(*FORCE, "--yes", "--no-wait").code == 2
    answers = iter([False, True, False])
    monkeypatch.setattr("typer.confirm", lambda *arguments, **options: next(answers))
    assert signed_in(*FORCE).code == 1
    assert not stuck.asked(f"{FILESYSTEMS}/Delete")
    assert signed_in(*FORCE).code == 1
    assert stuck.asked(f"{FILESYSTEMS}/Delete") and not stuck.asked(deletion.FORGET)


def test_a_deletion_that_was_marked_by_its_owners_and_ended_meanwhile(
    signed_in: Neo, stuck: FakeServer
) -> None:
    stuck.serve(f"{FILESYSTEMS}/Delete", refuse(contract.Code.FAILED_PRECONDITION, "It is being deleted."))
    stuck.serve(deletion.FORGET, refuse(contract.Code.NOT_FOUND, "There is none."))
    ran = signed_in(*FORCE, "--yes")
    assert ran.code == 0 and "is deleted" in ran.out


def test_an_operator_forces_the_deletion_of_another_tenants_resource(
    signed_in: Neo, stuck: FakeServer
) -> None:
    missing = refuse(contract.Code.NOT_FOUND, "There is no such resource.")
    for verb in ("Get", "GetByName", "Delete"):
        stuck.serve(f"{FILESYSTEMS}/{verb}", missing)
    foreign = "computefilesystem-e00foreign"
    ran = signed_in("compute", "filesystem", "delete", foreign, "--force", "--yes")
    assert ran.code == 0, ran.err
    assert [request.id for request in stuck.asked(deletion.FORGET)] == [foreign]
    stuck.serve(deletion.FORGET, missing)
    assert signed_in("compute", "filesystem", "delete", foreign, "--force", "--yes").code == 3


@pytest.mark.parametrize("verb", [("get",), ("delete", "--yes")])
def test_a_name_may_look_like_an_id(signed_in: Neo, served: FakeServer, verb: tuple[str, ...]) -> None:
    """`before-upgrade` has a word before a dash, as ids have."""
    found = filesystem("before-upgrade")

    def by_id(request: Any) -> Any:
        if request.id != found.metadata.id:
            raise contract.not_found("filesystem", request.id)
        return found

    def by_name(request: Any) -> Any:
        if request.name != "before-upgrade":
            raise contract.not_found("filesystem", request.name)
        return found

    served.serve(f"{FILESYSTEMS}/Get", by_id)
    served.serve(f"{FILESYSTEMS}/GetByName", by_name)
    for target in ("before-upgrade", found.metadata.id):
        ran = signed_in("compute", "filesystem", verb[0], target, *verb[1:])
        assert ran.code == 0, ran.err
    deleted = {request.id for request in served.asked(f"{FILESYSTEMS}/Delete")}
    assert deleted == ({found.metadata.id} if verb[0] == "delete" else set())


def test_projects_belong_to_the_tenant_of_the_profile(signed_in: Neo, cloud: FakeServer) -> None:
    cloud.serve(f"{PROJECTS}/List", contract.method(f"{PROJECTS}/List").output())
    ran = signed_in("iam", "project", "list")
    assert cloud.asked(f"{PROJECTS}/List")[0].parent_id == TENANT
    assert ran.err.startswith("There is no ")


def test_lists_are_fetched_page_by_page(signed_in: Neo, cloud: FakeServer) -> None:
    answer = contract.method(f"{FILESYSTEMS}/List").output
    pages = {
        "": answer(items=[filesystem("a")], next_page_token="more"),
        "more": answer(items=[filesystem("b")]),
    }
    cloud.serve(f"{FILESYSTEMS}/List", lambda request: pages[request.page_token])
    found = json.loads(signed_in("compute", "filesystem", "list", "-o", "json").out)
    assert [item["metadata"]["name"] for item in found] == ["a", "b"]


def test_an_rpc_that_is_not_served_says_so(signed_in: Neo, cloud: FakeServer) -> None:
    ran = signed_in("iam", "project", "list")
    assert ran.code == 1
    assert "neo --help" in ran.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--label", "team"), "'team' is not NAME=VALUE"),
        (("--file", "/nowhere.yaml"), "/nowhere.yaml cannot be read"),
        (
            ("--size-gibibytes", "ten"),
            "Invalid value for '--size-gibibytes': must be a whole number",
        ),
        (("--type", "TAPE"), "TAPE"),
    ],
)
def test_wrong_flags_are_misuse(
    signed_in: Neo, served: FakeServer, arguments: tuple[str, ...], said: str
) -> None:
    ran = signed_in("compute", "filesystem", "create", "--name", "x", *arguments)
    assert ran.code == 2
    assert said in ran.err
    assert not served.asked(f"{FILESYSTEMS}/Create")


def test_a_misspelt_field_in_a_manifest_is_refused(
    signed_in: Neo, served: FakeServer, tmp_path: Path
) -> None:
    manifest = tmp_path / "wrong.yaml"
    manifest.write_text(yaml.safe_dump({"metadata": {"name": "x"}, "spec": {"size_gibibites": 1}}))
    ran = signed_in("compute", "filesystem", "create", "--file", str(manifest))
    assert ran.code == 2
    assert "size_gibibites" in ran.err


def test_flags_of_nested_messages_are_flat_and_deep_ones_are_json() -> None:
    flags = {
        flag.option: flag
        for flag in flags_of(contract.message("neocloud.slurm.v1.CreateClusterRequest").DESCRIPTOR)
    }
    assert flags["--login-port"].path == ("spec", "login", "port")
    assert flags["--node-sets"].value_of('[{"name": "worker"}]') == [{"name": "worker"}]
    assert "--metadata-name" in flags
    assert not any(option.startswith("--status") for option in flags)


def test_of_many_names_the_closest_are_named() -> None:
    many = [f"disk-{number}" for number in range(1000)]
    assert closest_names("disk-77x", many).startswith("The closest of 1000 names are: disk-77")
    assert len(closest_names("disk-77x", many)) < 100
    assert closest_names("a", ["b", "a2"]) == "There are: a2, b"
    assert closest_names("a", []) == ""


def test_a_refusal_of_a_group_of_fields_names_their_options(signed_in: Neo, cloud: FakeServer) -> None:
    def refuse(request: Any) -> Any:
        raise contract.bad_request(
            [
                Violation("spec.size", "exactly one field is required in oneof"),
                Violation("spec.type", "value is required"),
            ]
        )

    cloud.serve("nebius.compute.v1.DiskService/Create", refuse)
    ran = signed_in("compute", "disk", "create", "data")
    assert ran.code == 2 and "spec." not in ran.err
    assert "one of --size-bytes, --size-kibibytes, --size-mebibytes, --size-gibibytes is required" in ran.err
    assert "--type is required: NETWORK_SSD" in ran.err


def test_a_refusal_inside_an_object_names_the_option_of_the_object(signed_in: Neo, cloud: FakeServer) -> None:
    def refuse(request: Any) -> Any:
        raise contract.bad_field(
            "spec.ipv4_private_pools.pools[0].cidrs[0].cidr", "must lie in 10.130.0.0/16"
        )

    cloud.serve("nebius.vpc.v1.SubnetService/Create", refuse)
    ran = signed_in("vpc", "subnet", "create", "s1", "--cidr", "10.99.0.0/24")
    assert ran.err == "neo: --cidr must lie in 10.130.0.0/16.\n"


def test_a_refusal_of_a_field_without_an_option_is_told_as_it_is(signed_in: Neo, cloud: FakeServer) -> None:
    def refuse(request: Any) -> Any:
        raise contract.bad_request(
            [Violation("metadata.name", "is too long"), Violation("spec.network_id", "is gone")]
        )

    cloud.serve("nebius.vpc.v1.SubnetService/Create", refuse)
    ran = signed_in("vpc", "subnet", "create", "s1")
    assert ran.code == 2 and "metadata.name is too long" in ran.err


def test_a_refusal_of_a_list_names_its_options(signed_in: Neo, cloud: FakeServer) -> None:
    def refuse(request: Any) -> Any:
        raise contract.bad_field("region", "value is required")

    cloud.serve("nebius.compute.v1.ImageService/ListPublic", refuse)
    assert signed_in("compute", "image", "list-public").err == "neo: --region is required.\n"


def test_an_unknown_parent_names_the_command_that_lists_them(signed_in: Neo, cloud: FakeServer) -> None:
    def refuse(request: Any) -> Any:
        raise contract.not_found("security group", request.name)

    cloud.serve("nebius.vpc.v1.SecurityGroupService/GetByName", refuse)
    ran = signed_in("vpc", "security-rule", "list", "--parent-id", "web")
    assert ran.code == 3 and "`neo vpc security-group list` shows both" in ran.err


def test_a_token_is_not_broken_at_the_edge_of_a_terminal(signed_in: Neo, cloud: FakeServer) -> None:
    operation_made = {"id": "operation-e00one", "resource_id": "statickey-e00one"}
    token = f"ncsk_statickey-e00one_{'0123456789abcdef' * 6}"
    answer = contract.method("nebius.iam.v1.StaticKeyService/Issue").output(
        token=token, operation=operation_made
    )
    cloud.serve("nebius.iam.v1.StaticKeyService/Issue", answer)
    command = ("iam", "static-key", "issue", "pulls", "--service", "OBSERVABILITY")
    assert token in on_screen(60, lambda: signed_in(*command))
