"""`neo slurm cluster` (SLURM-01, SLURM-02)."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from neocloud.cli.commands.slurm.changes import report_ready
from neocloud.cli.commands.slurm.login import login_host
from neocloud.cli.output import Format
from neocloud.client.profiles import Profile
from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import (
    CLUSTERS,
    PROJECT,
    FakeServer,
    cluster,
    operation,
    serve_clusters,
)

LOGIN_MODULE = "neocloud.cli.commands.slurm.login"
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPNsYZw2ZmQ1QkZkQ1QkZkQ1QkZkQ1QkZkQ1QkZkQ1Qk me@laptop"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "key.pub"
    file.write_text(PUBLIC_KEY + "\n")
    return file


def platforms(**presets: list[tuple[str, int, int, int]]) -> Any:
    """An answer of Platform.List: platform name to (preset, vcpu, memory, gpus)."""
    return contract.from_dict(
        contract.method("nebius.compute.v1.PlatformService/List").output,
        {
            "items": [
                {
                    "metadata": {"name": name.replace("_", "-")},
                    "spec": {
                        "presets": [
                            {"name": n, "resources": {"vcpu_count": c, "memory_gibibytes": m, "gpu_count": g}}
                            for n, c, m, g in shapes
                        ]
                    },
                }
                for name, shapes in presets.items()
            ]
        },
    )


@pytest.fixture
def creating(cloud: FakeServer) -> FakeServer:
    """A cloud that makes a cluster in three looks."""
    looks = [
        [("Create the shared root", "ok"), ("Start the pods", "waiting")],
        [("Create the shared root", "ok"), ("Start the pods", "ok"), ("Wait for the workers", "waiting")],
        [("Create the shared root", "ok"), ("Start the pods", "ok"), ("Wait for the workers", "ok")],
    ]
    serve_clusters(cloud)
    seen = iter(looks)
    last: list[Any] = []

    def get(request: Any) -> Any:
        steps = next(seen, looks[-1])
        last[:] = [steps]
        return cluster("bank", steps=[{"name": name, "outcome": outcome} for name, outcome in steps])

    cloud.serve(f"{CLUSTERS}/Create", operation("slurmcluster-e00bank", done=False))
    cloud.serve(f"{CLUSTERS}/Get", get)
    cloud.serve(
        "nebius.common.v1.OperationService/Get",
        lambda request: operation("slurmcluster-e00bank", done=bool(last) and last[0] is looks[-1]),
    )
    cloud.serve(
        "nebius.compute.v1.PlatformService/List",
        platforms(
            gpu_h100_sxm=[("1gpu-16vcpu-200gb", 16, 200, 1)],
            cpu_e2=[("4vcpu-16gb", 4, 16, 0), ("2vcpu-8gb", 2, 8, 0)],
        ),
    )
    return cloud


def test_create_shows_the_steps_that_have_something_to_do(
    signed_in: Neo, creating: FakeServer, key_file: Path
) -> None:
    ran = signed_in("slurm", "cluster", "create", "bank", "--workers", "3", "--ssh-key", str(key_file))
    assert ran.code == 0, ran.err
    steps = [line.split(" s  ")[-1] for line in ran.err.splitlines() if line.startswith("  ")]
    assert steps == ["Start the pods", "Wait for the workers"]
    assert "Cluster bank is READY after" in ran.out
    assert "20 to 30 minutes" not in ran.out + ran.err
    [request] = creating.asked(f"{CLUSTERS}/Create")
    assert request.metadata.parent_id == PROJECT
    assert list(request.spec.login.ssh_public_keys) == [PUBLIC_KEY]
    assert request.spec.node_sets[0].count == 3


def test_create_takes_the_smallest_preset_without_gpus_unless_told(
    signed_in: Neo, creating: FakeServer, key_file: Path
) -> None:
    signed_in("slurm", "cluster", "create", "bank", "--ssh-key", str(key_file))
    [request] = creating.asked(f"{CLUSTERS}/Create")
    assert (request.spec.node_sets[0].platform, request.spec.node_sets[0].preset) == ("cpu-e2", "2vcpu-8gb")


def test_create_says_the_subnet_and_the_filesystems(
    signed_in: Neo, creating: FakeServer, key_file: Path
) -> None:
    places = ("--filesystem", "computefilesystem-e00a:/mnt/a", "--filesystem", "computefilesystem-e00b:/srv")
    ran = signed_in(
        *("slurm", "cluster", "create", "bank", "--ssh-key", str(key_file), "--subnet", "vpcsubnet-e00a"),
        *places,
    )
    assert ran.code == 0, ran.err
    [request] = creating.asked(f"{CLUSTERS}/Create")
    assert request.spec.subnet_id == "vpcsubnet-e00a"
    mounted = [(each.filesystem_id, each.mount_path) for each in request.spec.filesystems]
    assert mounted == [("computefilesystem-e00a", "/mnt/a"), ("computefilesystem-e00b", "/srv")]


@pytest.mark.parametrize("text", ["computefilesystem-e00a", ":/mnt", "computefilesystem-e00a:"])
def test_a_filesystem_without_its_place_is_refused(
    signed_in: Neo, creating: FakeServer, key_file: Path, text: str
) -> None:
    ran = signed_in("slurm", "cluster", "create", "bank", "--ssh-key", str(key_file), "--filesystem", text)
    assert ran.code == 2
    assert "ID:PATH" in ran.err
    assert not creating.asked(f"{CLUSTERS}/Create")


def test_create_says_the_blocks(signed_in: Neo, creating: FakeServer, key_file: Path) -> None:
    create = ("slurm", "cluster", "create", "bank", "--ssh-key", str(key_file))
    ran = signed_in(
        *create, "--block", "worker:0-17=rack-1", "--block", "worker:18=rack-2", "--block-size", "9"
    )
    assert ran.code == 0, ran.err
    [request] = creating.asked(f"{CLUSTERS}/Create")
    topology = contract.to_dict(request.spec.topology)
    assert topology["type"] == "BLOCK" and [int(size) for size in topology["block_sizes"]] == [9]
    assert [list(place.path) for place in request.spec.topology.nodes] == [["rack-1"], ["rack-2"]]
    assert [(place.first, place.last) for place in request.spec.topology.nodes] == [(0, 17), (18, 18)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--block", "worker=rack"), "SET:FIRST-LAST=BLOCK"),
        (("--block", "worker:0=rack", "--place", "worker:0=leaf"), "below switches or in blocks"),
        (("--block-size", "2"), "needs --block"),
        (("--place", "worker"), "SET:FIRST-LAST=SWITCH/..."),
    ],
)
def test_places_that_are_not_complete_are_refused(
    signed_in: Neo, creating: FakeServer, key_file: Path, options: tuple[str, ...], said: str
) -> None:
    ran = signed_in("slurm", "cluster", "create", "bank", "--ssh-key", str(key_file), *options)
    assert ran.code == 2 and said in ran.err
    assert not creating.asked(f"{CLUSTERS}/Create")


def test_a_name_that_is_taken_names_the_command_that_uses_it(
    signed_in: Neo, creating: FakeServer, key_file: Path
) -> None:
    def refuse(request: Any) -> Any:
        raise contract.already_exists("cluster", "bank")

    creating.serve(f"{CLUSTERS}/Create", refuse)
    creating.serve(f"{CLUSTERS}/GetByName", contract.method(f"{CLUSTERS}/GetByName").output())
    ran = signed_in("slurm", "cluster", "create", "bank", "--ssh-key", str(key_file))
    assert ran.code == 7 and "neo slurm cluster create bank --reuse" in ran.err


def test_an_unknown_preset_names_where_to_look(signed_in: Neo, creating: FakeServer, key_file: Path) -> None:
    ran = signed_in("slurm", "cluster", "create", "bank", "--preset", "9vcpu", "--ssh-key", str(key_file))
    assert ran.code == 2
    assert "No platform here has a preset '9vcpu'" in ran.err
    assert "neo compute platform list" in ran.err


def test_a_private_key_is_refused_before_anything_is_sent(
    signed_in: Neo, creating: FakeServer, tmp_path: Path
) -> None:
    private = tmp_path / "id"
    private.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    ran = signed_in("slurm", "cluster", "create", "bank", "--ssh-key", str(private))
    assert ran.code == 2
    assert "is a private key, which must not be shared" in ran.err
    assert not creating.asked(f"{CLUSTERS}/Create")


def test_a_missing_key_file_says_how_to_make_one(
    signed_in: Neo, creating: FakeServer, tmp_path: Path
) -> None:
    ran = signed_in("slurm", "cluster", "create", "bank", "--ssh-key", str(tmp_path / "no.pub"))
    assert ran.code == 2
    assert "ssh-keygen -t ed25519" in ran.err


def test_wrong_fields_are_listed_one_a_line(signed_in: Neo, creating: FakeServer, key_file: Path) -> None:
    def refuse(request: Any) -> Any:
        raise contract.bad_request(
            [
                ("metadata.name", "may hold only lower-case letters"),
                ("spec.node_sets[0].count", "must be 0 to 1024"),
            ]
        )

    creating.serve(f"{CLUSTERS}/Create", refuse)
    ran = signed_in("slurm", "cluster", "create", "My Bank", "--ssh-key", str(key_file))
    assert ran.code == 2
    assert "metadata.name" in ran.err
    assert "must be 0 to 1024" in ran.err
    assert "Traceback" not in ran.err


def test_a_taken_name_has_its_own_exit_code(signed_in: Neo, creating: FakeServer, key_file: Path) -> None:
    def refuse(request: Any) -> Any:
        raise contract.already_exists("cluster", "bank")

    creating.serve(f"{CLUSTERS}/Create", refuse)
    assert signed_in("slurm", "cluster", "create", "bank", "--ssh-key", str(key_file)).code == 7


def test_reuse_takes_the_cluster_that_is_there(signed_in: Neo, cloud: FakeServer) -> None:
    serve_clusters(cloud, cluster("bank"))
    ran = signed_in("slurm", "cluster", "create", "bank", "--reuse")
    assert ran.code == 0
    assert "already exists and is READY" in ran.out


def test_reuse_waits_for_a_cluster_that_is_still_being_made(signed_in: Neo, cloud: FakeServer) -> None:
    serve_clusters(cloud, cluster("bank", state="CREATING"))
    looks = iter([cluster("bank", state="CREATING"), cluster("bank")])
    cloud.serve(f"{CLUSTERS}/Get", lambda request: next(looks))
    assert signed_in("slurm", "cluster", "create", "bank", "--reuse").code == 0
    assert next(looks, None) is None


def test_reuse_of_a_broken_cluster_is_an_error(signed_in: Neo, cloud: FakeServer) -> None:
    serve_clusters(cloud, cluster("bank", state="ERROR"))
    ran = signed_in("slurm", "cluster", "create", "bank", "--reuse")
    assert ran.code == 1
    assert "Cluster bank is ERROR. `neo slurm cluster get bank` shows the reason" in ran.err


def test_a_failed_operation_is_an_error_with_its_reason(
    signed_in: Neo, creating: FakeServer, key_file: Path
) -> None:
    failed = operation("slurmcluster-e00bank", code=8, message="The disk is full. Free some space.")
    creating.serve("nebius.common.v1.OperationService/Get", failed)
    ran = signed_in("slurm", "cluster", "create", "bank", "--ssh-key", str(key_file))
    assert ran.code == 6
    assert ran.err.endswith("neo: The disk is full. Free some space.\n")


def test_list_as_a_table_is_plain_text_without_a_terminal(signed_in: Neo, cloud: FakeServer) -> None:
    serve_clusters(cloud, cluster("bank"), cluster("lab", state="CREATING", workers=1))
    ran = signed_in("slurm", "cluster", "list")
    assert ran.code == 0
    assert "\x1b" not in ran.out + ran.err
    lines = ran.out.splitlines()
    assert lines[0].split() == ["NAME", "STATE", "WORKERS", "LOGIN", "ID"]
    assert lines[1].startswith("bank")
    assert "2 worker (2vcpu-8gb)" in lines[1]
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize(("output", "parse"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_list_for_programs_is_the_contracts_own_form(
    signed_in: Neo, cloud: FakeServer, output: str, parse: Any
) -> None:
    serve_clusters(cloud, cluster("bank"))
    [item] = parse(signed_in("slurm", "cluster", "list", "--output", output).out)
    assert item["metadata"]["name"] == "bank"
    assert item["status"]["state"] == "READY"


def test_no_cluster_is_an_empty_list_and_a_hint_beside_it(signed_in: Neo, cloud: FakeServer) -> None:
    serve_clusters(cloud)
    ran = signed_in("slurm", "cluster", "list")
    assert ran.out == ""
    assert "neo slurm cluster create" in ran.err
    assert json.loads(signed_in("slurm", "cluster", "list", "-o", "json").out) == []


def test_an_unknown_cluster_lists_the_known_ones(signed_in: Neo, cloud: FakeServer) -> None:
    serve_clusters(cloud, cluster("lab"), cluster("bank"))
    ran = signed_in("slurm", "cluster", "get", "bnak")
    assert ran.code == 3
    assert ran.err == "neo: There is no Slurm cluster 'bnak'. There are: bank, lab.\n"


def test_get_shows_nodes_and_what_it_waits_for(signed_in: Neo, cloud: FakeServer) -> None:
    node = {
        "name": "worker-0",
        "node_set": "worker",
        "slurm_state": "IDLE",
        "address": "10.89.0.5",
        "restarts": "1",
    }
    steps = [{"name": "Wait for the controller", "outcome": "waiting", "message": "port 6817 is closed"}]
    serve_clusters(cloud, cluster("bank", state="CREATING", nodes=[node], steps=steps))
    ran = signed_in("slurm", "cluster", "get", "bank")
    assert "Wait for the controller: port 6817 is closed" in ran.out
    assert "worker-0" in ran.out
    assert "10.89.0.5" in ran.out


def test_a_cluster_is_found_by_its_id_too(signed_in: Neo, cloud: FakeServer) -> None:
    serve_clusters(cloud, cluster("bank"))
    assert signed_in("slurm", "cluster", "get", "slurmcluster-e00bank").code == 0


class TestScale:
    @pytest.fixture
    def scaling(self, cloud: FakeServer) -> FakeServer:
        serve_clusters(cloud, cluster("bank"))
        cloud.serve(f"{CLUSTERS}/Update", operation("slurmcluster-e00bank"))
        return cloud

    def test_it_sends_the_new_count_with_the_version_it_saw(
        self, signed_in: Neo, scaling: FakeServer
    ) -> None:
        ran = signed_in("slurm", "cluster", "scale", "bank", "--node-set", "worker=3")
        assert ran.code == 0, ran.err
        [request] = scaling.asked(f"{CLUSTERS}/Update")
        assert request.spec.node_sets[0].count == 3
        assert request.metadata.resource_version == 3
        assert "3 x worker" in ran.out

    def test_down_to_zero_names_the_count_in_the_reset_mask(
        self, signed_in: Neo, scaling: FakeServer
    ) -> None:
        """0 is the field's default: without the mask the cloud would keep the old count."""
        signed_in("slurm", "cluster", "scale", "bank", "--workers", "0")
        mask = scaling.headers(f"{CLUSTERS}/Update")["x-resetmask"]
        assert "spec.node_sets.*.count" in mask.split(",")
        old, [request] = cluster("bank"), scaling.asked(f"{CLUSTERS}/Update")
        merged = contract.merge_update(old, request, contract.parse_mask(mask))
        assert merged.spec.node_sets[0].count == 0
        assert merged.spec.node_sets[0].preset == "2vcpu-8gb"

    def test_an_elastic_set_gets_a_minimum_of_zero_and_is_made_fixed_again(
        self, signed_in: Neo, scaling: FakeServer
    ) -> None:
        signed_in("slurm", "cluster", "scale", "bank", "--min-workers", "0", "--idle-seconds", "60")
        signed_in("slurm", "cluster", "scale", "bank", "--fixed")
        mask = contract.parse_mask(scaling.headers(f"{CLUSTERS}/Update")["x-resetmask"])
        elastic, fixed = scaling.asked(f"{CLUSTERS}/Update")
        old = cluster("bank")
        old.spec.node_sets[0].elastic.min_count = 1
        merged = contract.merge_update(old, elastic, mask).spec.node_sets[0]
        assert (merged.elastic.min_count, merged.elastic.idle_seconds) == (0, 60)
        assert merged.count == old.spec.node_sets[0].count
        assert not contract.merge_update(old, fixed, mask).spec.node_sets[0].HasField("elastic")

    def test_idle_seconds_are_for_elastic_sets(self, signed_in: Neo) -> None:
        ran = signed_in("slurm", "cluster", "create", "lab", "--idle-seconds", "60")
        assert ran.code == 2 and "--min-workers" in ran.err

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ("gpu=3", "There is no node set 'gpu'. There are: worker."),
            ("worker=many", "'worker=many' is not SET=COUNT"),
            ("worker=-1", "'worker=-1' is not SET=COUNT"),
        ],
    )
    def test_a_wrong_count_is_misuse(
        self, signed_in: Neo, scaling: FakeServer, given: str, said: str
    ) -> None:
        ran = signed_in("slurm", "cluster", "scale", "bank", "--node-set", given)
        assert ran.code == 2
        assert said in ran.err


def test_delete_without_a_terminal_to_ask_changes_nothing(
    signed_in: Neo, cloud: FakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve_clusters(cloud, cluster("bank"))
    (tmp_path / "empty").touch()
    with (tmp_path / "empty").open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert signed_in("slurm", "cluster", "delete", "bank").code == 1
    assert not cloud.asked(f"{CLUSTERS}/Delete")


def test_delete_ends_well_when_the_cluster_is_gone(signed_in: Neo, cloud: FakeServer) -> None:
    serve_clusters(cloud, cluster("bank"))
    cloud.serve(f"{CLUSTERS}/Delete", lambda request: serve_clusters(cloud) or operation(request.id))
    ran = signed_in("slurm", "cluster", "delete", "bank", "--yes")
    assert ran.code == 0, ran.err
    assert "Cluster bank is deleted" in ran.out


class TestCheck:
    def serve(self, cloud: FakeServer, *verdicts: str) -> None:
        serve_clusters(cloud, cluster("bank"))
        results = [
            {
                "node": f"worker-{n}",
                "check": "cpu",
                "verdict": v,
                "measured": "2",
                "threshold": "2",
                "drained": v == "fail",
            }
            for n, v in enumerate(verdicts)
        ]
        answer = contract.from_dict(contract.method(f"{CLUSTERS}/Check").output, {"results": results})
        cloud.serve(f"{CLUSTERS}/Check", answer)

    def test_all_pass(self, signed_in: Neo, cloud: FakeServer) -> None:
        self.serve(cloud, "pass", "not_run")
        ran = signed_in("slurm", "cluster", "check", "bank")
        assert ran.code == 0
        assert "1 pass, 0 fail, 0 not_enforced, 1 not_run" in ran.out
        assert not cloud.asked(f"{CLUSTERS}/Check")[0].report_only

    def test_a_failure_is_an_exit_code_and_names_the_drained_node(
        self, signed_in: Neo, cloud: FakeServer
    ) -> None:
        self.serve(cloud, "pass", "fail")
        ran = signed_in("slurm", "cluster", "check", "bank", "--report-only")
        assert ran.code == 1
        assert "(drained)" in ran.out
        assert cloud.asked(f"{CLUSTERS}/Check")[0].report_only


class TestLogin:
    LOGIN = {"host": "127.0.0.1", "port": "2222", "host_keys": ["ssh-ed25519 AAAAhost"]}

    def test_ssh_config_pins_the_host_key(self, signed_in: Neo, cloud: FakeServer, tmp_path: Path) -> None:
        serve_clusters(cloud, cluster("bank", login=self.LOGIN))
        ran = signed_in("slurm", "cluster", "ssh-config", "bank", "--identity", str(tmp_path / "key"))
        lines = dict(line.split(maxsplit=1) for line in ran.out.splitlines())
        assert (lines["Host"], lines["HostName"], lines["Port"]) == ("bank", "127.0.0.1", "2222")
        assert lines["StrictHostKeyChecking"] == "yes"
        assert lines["IdentityFile"] == str(tmp_path / "key")
        pinned = Path(lines["UserKnownHostsFile"]).read_text()
        assert pinned == "slurmcluster-e00bank,[127.0.0.1]:2222 ssh-ed25519 AAAAhost\n"

    def test_a_configuration_holds_when_another_profile_pins_the_key_for_another_address(
        self, signed_in: Neo, cloud: FakeServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        serve_clusters(cloud, cluster("bank", login={**self.LOGIN, "host": "0.0.0.0"}))
        configurations: list[dict[str, str]] = []
        for address in ("192.0.2.7", "cloud.example"):
            monkeypatch.setattr(f"{LOGIN_MODULE}.live_endpoint", lambda profile, to=address: f"{to}:7372")
            printed = signed_in("slurm", "cluster", "ssh-config", "bank").out.splitlines()
            configurations.append(dict(line.split(maxsplit=1) for line in printed))
        first, second = configurations
        assert (first["HostName"], second["HostName"]) == ("192.0.2.7", "cloud.example")
        assert first["UserKnownHostsFile"] == second["UserKnownHostsFile"]
        names = Path(first["UserKnownHostsFile"]).read_text().split()[0].split(",")
        assert first["HostKeyAlias"] in names and "[cloud.example]:2222" in names

    def test_the_identity_is_the_one_that_is_let_in(
        self, signed_in: Neo, cloud: FakeServer, tmp_path: Path
    ) -> None:
        serve_clusters(cloud, cluster("bank", login=self.LOGIN))
        folder = tmp_path / "me" / ".ssh"
        folder.mkdir(parents=True)
        for name, body in {"other": "AAAAother", "right": "AAAAkey"}.items():
            (folder / name).touch()
            (folder / f"{name}.pub").write_text(f"ssh-ed25519 {body} me\n")
        assert f"IdentityFile {folder / 'right'}" in signed_in("slurm", "cluster", "ssh-config", "bank").out

    def test_ssh_runs_the_users_own_ssh_with_the_right_port_and_command(
        self, signed_in: Neo, cloud: FakeServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        serve_clusters(cloud, cluster("bank", login=self.LOGIN))
        executed: list[list[str]] = []
        monkeypatch.setattr("os.execv", lambda program, arguments: executed.append(arguments))
        signed_in("slurm", "cluster", "ssh", "bank", "--", "sinfo", "--Node")
        [arguments] = executed
        assert arguments[-4:] == ["--", "127.0.0.1", "sinfo", "--Node"]  # no host can pass for an option
        assert "Port=2222" in arguments

    @pytest.mark.parametrize(
        ("endpoint", "host", "expected"),
        [
            ("cloud.bank.example:7372", "0.0.0.0", "cloud.bank.example"),
            ("cloud.bank.example:7372", "10.0.0.7", "cloud.bank.example"),  # translated on the way
            ("[2001:db8::7]:7372", "10.0.0.7", "10.0.0.7"),  # login nodes have no IPv6 address
            ("[2001:db8::7]:7372", "0.0.0.0", "2001:db8::7"),
            ("127.0.0.1:7370", "0.0.0.0", "127.0.0.1"),
            ("192.0.2.7:7372", "127.0.0.1", "127.0.0.1"),  # for a jump host
        ],
    )
    def test_the_host_is_the_one_by_which_the_api_is_reached(
        self, endpoint: str, host: str, expected: str
    ) -> None:
        assert login_host(Profile("far", endpoint, "", session_file="s"), host) == expected

    def test_on_the_clouds_machine_it_is_loopback(self, tmp_path: Path) -> None:
        assert login_host(Profile("near", "192.0.2.7:1", "", home=str(tmp_path)), "192.0.2.7") == "127.0.0.1"

    def test_from_another_machine_the_host_key_is_pinned_for_the_host_that_is_called(
        self, signed_in: Neo, cloud: FakeServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        serve_clusters(cloud, cluster("bank", login={**self.LOGIN, "host": "0.0.0.0"}))
        monkeypatch.setattr(f"{LOGIN_MODULE}.live_endpoint", lambda profile: "192.0.2.7:7372")
        ran = signed_in("slurm", "cluster", "ssh-config", "bank")
        lines = dict(line.split(maxsplit=1) for line in ran.out.splitlines())
        assert lines["HostName"] == "192.0.2.7"
        assert (
            Path(lines["UserKnownHostsFile"]).read_text().endswith(",[192.0.2.7]:2222 ssh-ed25519 AAAAhost\n")
        )
        assert "192.0.2.7:2222" in signed_in("slurm", "cluster", "get", "bank").out

    def test_where_ssh_is_not_open_to_others_it_says_so(
        self, signed_in: Neo, cloud: FakeServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        serve_clusters(cloud, cluster("bank", login=self.LOGIN))
        monkeypatch.setattr("os.execv", lambda program, arguments: None)
        assert "--listen" not in signed_in("slurm", "cluster", "ssh", "bank").err
        monkeypatch.setattr(f"{LOGIN_MODULE}.live_endpoint", lambda profile: "192.0.2.7:7372")
        assert "`neo up --listen` and an IPv4 address" in signed_in("slurm", "cluster", "ssh", "bank").err

    def test_a_cluster_without_login_node_says_how_far_it_is(self, signed_in: Neo, cloud: FakeServer) -> None:
        serve_clusters(cloud, cluster("bank", state="CREATING"))
        ran = signed_in("slurm", "cluster", "ssh", "bank")
        assert ran.code == 1
        assert "has no login node yet: it is CREATING" in ran.err


@pytest.mark.parametrize(("workers", "keys"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_only_what_works_is_offered_of_a_new_cluster(
    capsys: pytest.CaptureFixture[str], workers: int, keys: int
) -> None:
    """FI-29: no way to sign in where there is none, and no job where none can run."""
    made = contract.message("neocloud.slurm.v1.Cluster")()
    made.metadata.name = "bank"
    made.spec.node_sets.add(name="worker", count=workers)
    made.spec.login.ssh_public_keys.extend([PUBLIC_KEY] * keys)
    report_ready(made, Format.TABLE, "Cluster bank is READY.")
    said = capsys.readouterr().out
    assert ("neo slurm cluster ssh bank" in said) == bool(keys)
    assert ("neo slurm user add bank NAME --ssh-key FILE" in said) == (not keys)
    assert ("neo slurm job submit bank SCRIPT" in said) == bool(workers)
    assert ("neo slurm cluster scale bank --workers 1" in said) == (not workers)
