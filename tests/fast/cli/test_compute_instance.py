"""`neo compute instance` (CMP-01, CMP-09)."""

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from neocloud.cli.commands import instance as instance_commands
from neocloud.cli.ssh import accepts_ssh
from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import PROJECT, FakeServer, operation

INSTANCES = "nebius.compute.v1.InstanceService"
PROJECTS = "nebius.iam.v2.ProjectService"
MACHINES = "neocloud.compute.v1.MachineService"
ID = "computeinstance-e00web"
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPNsYZw2ZmQ1QkZkQ1QkZkQ1QkZkQ1QkZkQ1QkZkQ1Qk me@laptop"


def instance(state: str = "RUNNING") -> Any:
    interface = {
        "ip_address": {"address": "10.128.0.4/32"},
        "public_ip_address": {"address": "203.0.113.5/32"},
    }
    return contract.from_dict(
        contract.message("nebius.compute.v1.Instance"),
        {
            "metadata": {"id": ID, "name": "web"},
            "status": {"state": state, "network_interfaces": [interface]},
        },
    )


@pytest.fixture
def machines(cloud: FakeServer) -> FakeServer:
    subnets = {
        "items": [
            {"metadata": {"id": "vpcsubnet-e00other", "name": "other"}},
            {"metadata": {"id": "vpcsubnet-e00default", "name": "default-subnet"}},
        ]
    }
    platforms = {
        "items": [
            {
                "metadata": {"name": "cpu-local"},
                "spec": {
                    "presets": [{"name": "1vcpu-1gb", "resources": {"vcpu_count": 1, "memory_gibibytes": 1}}]
                },
            }
        ]
    }
    for path, answer in (
        ("nebius.vpc.v1.SubnetService/List", subnets),
        ("nebius.compute.v1.PlatformService/List", platforms),
    ):
        cloud.serve(path, contract.from_dict(contract.method(path).output, answer))
    for verb in ("Create", "Start", "Stop"):
        cloud.serve(f"{INSTANCES}/{verb}", operation(ID))
    cloud.serve(f"{INSTANCES}/Get", instance())
    cloud.serve(f"{INSTANCES}/GetByName", instance())
    return cloud


def test_a_machine_is_made_with_a_key_and_says_how_to_sign_in(
    signed_in: Neo, machines: FakeServer, tmp_path: Path
) -> None:
    key = tmp_path / "key.pub"
    key.write_text(PUBLIC_KEY + "\n")
    done = signed_in("compute", "instance", "create", "web", "--ssh-key", str(key), "--public-ip")
    (request,) = machines.asked(f"{INSTANCES}/Create")
    assert (request.metadata.name, request.metadata.parent_id) == ("web", PROJECT)
    assert request.spec.resources.preset == "1vcpu-1gb"
    (interface,) = request.spec.network_interfaces
    assert interface.subnet_id == "vpcsubnet-e00default"
    assert interface.HasField("public_ip_address")
    user_data = request.spec.cloud_init_user_data
    assert user_data.startswith("#cloud-config\n")
    assert yaml.safe_load(user_data)["users"][0]["ssh_authorized_keys"] == [PUBLIC_KEY]
    assert "ssh ubuntu@203.0.113.5" in done.out


def test_the_commands_that_are_named_can_be_pasted(
    signed_in: Neo, machines: FakeServer, tmp_path: Path
) -> None:
    key = tmp_path / "key.pub"
    key.write_text(PUBLIC_KEY + "\n")
    done = signed_in("compute", "instance", "create", "My Web", "--ssh-key", str(key))
    assert "neo compute instance ssh 'My Web' " in done.out
    assert "neo compute instance serial-log 'My Web' --follow" in done.out


def test_a_restart_is_a_stop_and_a_start(signed_in: Neo, machines: FakeServer) -> None:
    signed_in("compute", "instance", "restart", "web")
    changes = [path for path, _, _ in machines.requests if path.endswith(("/Stop", "/Start"))]
    assert changes == [f"{INSTANCES}/Stop", f"{INSTANCES}/Start"]


def test_the_serial_log_is_read_to_its_end(signed_in: Neo, machines: FakeServer) -> None:
    pieces = {0: (["one", "two"], 2), 2: (["three"], 3), 3: ([], 3)}

    def read(request: Any) -> Any:
        lines, following = pieces[request.first_line]
        return contract.message("neocloud.compute.v1.ReadSerialLogResponse")(lines=lines, next_line=following)

    machines.serve(f"{MACHINES}/ReadSerialLog", read)
    assert signed_in("compute", "instance", "serial-log", "web").out.split() == ["one", "two", "three"]


def test_nobody_signs_in_to_a_machine_that_is_off(signed_in: Neo, machines: FakeServer) -> None:
    machines.serve(f"{INSTANCES}/GetByName", instance("STOPPED"))
    done = signed_in("compute", "instance", "ssh", "web")
    assert "neo compute instance start web" in done.err


def test_ssh_waits_for_the_guest_and_says_how_to_see_it_boot(
    signed_in: Neo, machines: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine is RUNNING long before its guest accepts ssh."""
    answers = iter([False, False, True])
    ran: list[list[str]] = []
    monkeypatch.setattr(instance_commands, "accepts_ssh", lambda host: next(answers))
    monkeypatch.setattr(instance_commands, "FOLLOW_SECONDS", 0.001)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("os.execv", lambda program, arguments: ran.append(arguments))
    done = signed_in("compute", "instance", "ssh", "web", "--", "hostname")
    assert done.code == 0, done.err
    assert "Wait for the guest of web; neo compute instance serial-log web --follow shows it boot" in done.err
    assert ran[0][-2:] == ["ubuntu@203.0.113.5", "hostname"]


def test_ssh_gives_up_on_a_guest_that_never_answers(
    signed_in: Neo, machines: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance_commands, "accepts_ssh", lambda host: False)
    monkeypatch.setattr(instance_commands, "FOLLOW_SECONDS", 0.001)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    done = signed_in("compute", "instance", "ssh", "web", "--wait", "1")
    assert done.code == 5 and "does not accept ssh on 203.0.113.5" in done.err
    assert "security groups" in done.err


@pytest.mark.parametrize("setting", ["proxyjump bastion", "proxycommand nc %h %p"])
def test_ssh_through_a_proxy_does_not_wait_for_what_is_not_reached_from_here(
    signed_in: Neo, machines: FakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str
) -> None:
    program = tmp_path / "ssh"
    program.write_text(f"#!/bin/sh\necho 'user ubuntu'\necho '{setting}'\n")
    program.chmod(0o755)
    ran: list[list[str]] = []
    monkeypatch.setattr(instance_commands, "accepts_ssh", lambda host: False)
    monkeypatch.setattr("shutil.which", lambda name: str(program))
    monkeypatch.setattr("os.execv", lambda program, arguments: ran.append(arguments))
    done = signed_in("ssh", "web", "--user", "me", "--wait", "600")
    assert done.code == 0, done.err
    assert "through a proxy" in done.err
    assert ran[0][-1] == "me@203.0.113.5"


def test_ssh_by_name_waits_as_long_as_it_is_told(
    signed_in: Neo, machines: FakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    waited: list[int] = []
    monkeypatch.setattr(instance_commands, "_wait_for_ssh", lambda *given: waited.append(given[-1]))
    monkeypatch.setattr("shutil.which", lambda name: str(tmp_path / name))
    monkeypatch.setattr("os.execv", lambda program, arguments: None)
    assert signed_in("ssh", "web").code == 0
    assert signed_in("ssh", "web", "--wait", "7").code == 0
    assert waited == [instance_commands.BOOT_SECONDS, 7]


def test_a_file_names_project_and_labels_of_a_machine(
    signed_in: Neo, machines: FakeServer, tmp_path: Path
) -> None:
    project = contract.method(f"{PROJECTS}/GetByName").output()
    project.metadata.id = "project-e00trading"
    machines.serve(f"{PROJECTS}/GetByName", project)
    manifest = tmp_path / "machine.yaml"
    manifest.write_text("{metadata: {parentId: trading, labels: {team: risk}}, spec: {recoveryPolicy: FAIL}}")
    done = signed_in("compute", "instance", "create", "web", "--file", str(manifest))
    assert done.code == 0, done.err
    request = machines.asked(f"{INSTANCES}/Create")[-1]
    assert request.metadata.parent_id == "project-e00trading"
    assert dict(request.metadata.labels) == {"team": "risk"}
    assert contract.to_dict(request)["spec"]["recovery_policy"] == "FAIL"
    manifest.write_text("{metadata: [1], spec: {}}")
    refused = signed_in("compute", "instance", "create", "web", "--file", str(manifest))
    assert refused.code == 2 and "metadata" in refused.err


def test_a_server_is_an_ssh_server_only_when_it_greets() -> None:
    """A port may be open before the server behind it answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def greet(text: bytes) -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(text)

        for text, expected in ((b"SSH-2.0-test\r\n", True), (b"HTTP/1.1", False)):
            thread = threading.Thread(target=greet, args=(text,))
            thread.start()
            assert accepts_ssh("127.0.0.1", port) is expected
            thread.join()


def test_addresses_are_listed(signed_in: Neo, machines: FakeServer) -> None:
    path = f"{INSTANCES}/List"
    machines.serve(path, contract.method(path).output(items=[instance()]))
    header, row = signed_in("compute", "instance", "list").out.splitlines()
    assert header.split() == ["NAME", "STATE", "PRESET", "PRIVATE", "IP", "PUBLIC", "IP", "ID"]
    assert row.split() == ["web", "RUNNING", "-", "10.128.0.4", "203.0.113.5", ID]


def test_platforms_are_listed_by_preset(signed_in: Neo, machines: FakeServer) -> None:
    header, row = signed_in("compute", "platform", "list").out.splitlines()
    assert header.split()[:5] == ["PLATFORM", "PRESET", "VCPU", "GIB", "GPUS"]
    assert row.split()[:6] == ["cpu-local", "1vcpu-1gb", "1", "1", "0", "-"]
    assert row.count("no price") == 2, "the hour and the month: there is no calculator"
    shown = signed_in("compute", "platform", "list", "-o", "json")
    assert json.loads(shown.out)[0]["metadata"]["name"] == "cpu-local"


def test_the_file_of_host_keys_is_one_file_also_with_a_space_in_its_path(
    signed_in: Neo, machines: FakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(instance_commands, "config_file", lambda: tmp_path / "my home" / "config.yaml")
    monkeypatch.setattr(instance_commands, "accepts_ssh", lambda host: True)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("os.execv", lambda program, arguments: ran.append(arguments))
    done = signed_in("compute", "instance", "ssh", "web", "--wait", "0")
    assert done.code == 0, done.err
    assert f'UserKnownHostsFile="{tmp_path}/my home/known_hosts/{ID}"' in ran[0]
