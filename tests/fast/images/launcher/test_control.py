"""CMP-01, CMP-13: what machine-control asks of QEMU and of the guest's agent, against scripted sockets."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from launcher import control
from launcher.command_line import Places
from launcher.desired import parse_disk
from launcher.guest_agent import AgentError, ask_agent
from launcher.qmp import Qmp, QmpError

from tests.fast.images.launcher.scripted import Scripted

GREETING = {"QMP": {"version": {}}}
BOOT = {
    "qdev": "/machine/peripheral/device-boot/virtio-backend",
    "inserted": {"node-name": "disk-boot", "image": {"virtual-size": 1000}},
    "io-status": "ok",
}


class Qemu:
    """Answers what a running machine would."""

    def __init__(self) -> None:
        self.status = "running"
        self.blocks = [BOOT]
        self.nodes = ["disk-boot"]
        self.limits: dict[str, dict[str, int]] = {}
        self.keys: list[str] = []
        self.is_stubborn = False
        """Whether the guest ignores that a disk is to be removed."""

    def __call__(self, request: dict[str, Any]) -> list[Any]:
        match request["execute"]:
            case "query-status":
                return [{"event": "RTC_CHANGE"}, {"return": {"status": self.status}}]
            case "query-block":
                return [{"return": self.blocks}]
            case "query-named-block-nodes":
                return [{"return": [{"node-name": name} for name in self.nodes]}]
            case "qom-list" | "qom-get" | "qom-set":
                return [{"return": self._held(request["execute"], request.get("arguments", {}))}]
            case "stop" | "cont":
                self.status = {"stop": "paused", "cont": "running"}[request["execute"]]
                return [{"return": {}}]
            case "device_del":
                if self.is_stubborn:
                    desc = f"Device {request['arguments']['id']} is already in the process of unplug"
                    return [{"error": {"class": "GenericError", "desc": desc}}]
                self.blocks = [BOOT]
                return [{"return": {}}, {"event": "DEVICE_DELETED", "data": {"path": "x"}}]
            case "explode":
                return [{"error": {"class": "GenericError", "desc": "no such thing"}}]
            case "vanish":
                return []
            case _:
                return [{"return": {}}]

    def _held(self, command: str, arguments: dict[str, Any]) -> Any:
        if arguments["path"] == "/machine/peripheral":
            return [{"name": name} for name in ("type", "device-boot", "port0", "port1", "seed-port")]
        if arguments["path"] == "/machine/peripheral/device-boot":
            return "/machine/peripheral/port0/port0"
        if command == "qom-list":
            return [{"name": "chardevs"}, *({"name": name} for name in (*self.limits, *self.keys))]
        held = self.limits[arguments["path"].removeprefix("/objects/")]
        held.update(arguments.get("value", {}))
        return held


@pytest.fixture
def places(tmp_path: Path) -> Places:
    (tmp_path / "qemu").mkdir()
    return Places(tmp_path)


@pytest.fixture
def qemu(places: Places) -> Iterator[Scripted]:
    server = Scripted(places.control_monitor, Qemu(), GREETING)
    yield server
    server.close()


@pytest.fixture
def run(
    places: Places, qemu: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Run the program; its exit code and its one line."""
    monkeypatch.setattr(control, "Places", lambda: places)

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr("sys.argv", ["machine-control", *words])
        code = control.main()
        (line,) = capsys.readouterr().out.splitlines()
        return code, json.loads(line)

    return run


def asked(qemu: Scripted) -> list[str]:
    return [request["execute"] for request in qemu.asked if not request["execute"].startswith("q")]


def test_status(run):
    disks = {"boot": {"size_bytes": 1000, "io_status": "ok"}}
    assert run("status") == (0, {"state": "running", "reason": "", "disks": disks})


def test_status_of_a_machine_that_a_full_disk_paused(run, qemu):
    qemu._answer.status = "io-error"
    code, answer = run("status")
    assert (code, answer["state"]) == (0, "io-error")
    assert "disk" in answer["reason"]


@pytest.mark.parametrize(
    ("verb", "command"), [("power-button", "system_powerdown"), ("reset", "system_reset")]
)
def test_buttons(run, qemu, verb, command):
    assert run(verb) == (0, {})
    assert asked(qemu) == [command]


def test_a_disk_grows_and_never_shrinks(run, qemu):
    assert run("resize-disk", "boot", "2000")[0] == 0
    (resized,) = (request for request in qemu.asked if request["execute"] == "block_resize")
    assert resized["arguments"] == {"node-name": "disk-boot", "size": 2000}
    assert "cannot shrink" in run("resize-disk", "boot", "999")[1]["error"]
    assert run("resize-disk", "nope", "2000") == (
        1,
        {"error": "This machine has no disk nope; it has boot"},
    )
    assert run("resize-disk", "boot", "much")[0] == 1


DATA = BOOT | {"qdev": "/machine/peripheral/device-data/virtio-backend"}
LIMITS = {"read_operations": 300, "write_operations": 200, "read_bytes": 3000, "write_bytes": 2000}
HELD = {"iops-read": 300, "iops-write": 200, "bps-read": 3000, "bps-write": 2000, "iops-total": 0}


def test_a_disk_is_closed_when_the_guest_has_released_it(run, qemu):
    qemu._answer.blocks, qemu._answer.nodes = [BOOT, DATA], ["disk-boot", "disk-data"]
    qemu._answer.limits = {"limits-data": HELD}
    assert run("detach-disk", "data") == (0, {"is_detached": True})
    assert asked(qemu) == ["device_del", "blockdev-del", "object-del"]
    qemu._answer.nodes, qemu._answer.limits = ["disk-boot"], {}
    assert run("detach-disk", "data") == (0, {"is_detached": True}), "repeated"


def test_a_disk_that_the_guest_keeps_stays_open(run, qemu, monkeypatch):
    monkeypatch.setattr(control, "_UNPLUG_SECONDS", 0.0)
    qemu._answer.blocks, qemu._answer.nodes = [BOOT, DATA], ["disk-boot", "disk-data"]
    qemu._answer.is_stubborn = True
    assert run("detach-disk", "data") == (0, {"is_detached": False})
    assert asked(qemu) == ["device_del"]


def test_a_disk_is_attached_with_its_limits(run, qemu, monkeypatch):
    prepared = []
    monkeypatch.setattr(control.disks, "prepare", lambda disk: prepared.append(disk.id) or disk)
    disk = {"id": "data", "path": "/d", "size_bytes": 1, "limits": LIMITS}
    assert run("attach-disk", json.dumps(disk)) == (0, {})
    assert asked(qemu) == ["object-add", "blockdev-add", "device_add"]
    group, node, device = (request["arguments"] for request in qemu.asked[-3:])
    assert group["id"] == node["throttle-group"] == "limits-data"
    assert group["limits"] == {name: value for name, value in HELD.items() if value}
    assert (device["serial"], device["bus"]) == ("data", "port1")
    assert prepared == ["data"]
    disk["limits"] = LIMITS | {"read_bytes": -1}
    assert "positive" in run("attach-disk", json.dumps(disk | {"id": "other"}))[1]["error"]


def test_the_key_of_a_disk_goes_over_the_socket_and_away_with_the_disk(run, qemu, monkeypatch, tmp_path):
    monkeypatch.setattr(control.disks, "prepare", lambda disk: disk)
    monkeypatch.setattr(control, "parse_disk", lambda data: parse_disk(data, tmp_path))
    disk = {"id": "data", "path": "/d", "size_bytes": 1, "encrypted": True}
    assert run("attach-disk", json.dumps(disk))[0] == 1, "there is no key"
    (tmp_path / "key-data").write_text("ab" * 32)
    assert run("attach-disk", json.dumps(disk)) == (0, {})
    key, node = (request["arguments"] for request in qemu.asked[-3:-1])
    assert (key["qom-type"], key["id"], key["data"]) == ("secret", "key-data", "ab" * 32)
    assert node["encrypt"] == {"format": "luks", "key-secret": "key-data"}
    qemu._answer.blocks, qemu._answer.nodes = [BOOT, DATA], ["disk-boot", "disk-data"]
    qemu._answer.keys = ["key-data"]
    assert run("detach-disk", "data") == (0, {"is_detached": True})
    assert qemu.asked[-1]["arguments"] == {"id": "key-data"}


def test_limits_change_while_the_disk_is_in_use(run, qemu):
    qemu._answer.limits = {"limits-boot": dict(HELD)}
    assert run("status")[1]["disks"]["boot"]["limits"] == LIMITS
    more = LIMITS | {"write_operations": 400}
    assert run("limit-disk", "boot", json.dumps(more)) == (0, {"limits": more})
    assert run("limit-disk", "nope", json.dumps(more))[0] == 1


def test_wrong_use_is_told_with_the_right_one(run):
    for words in ((), ("explode",), ("status", "more"), ("resize-disk", "boot")):
        code, answer = run(*words)
        assert code == 2
        assert "resize-disk ID BYTES" in answer["error"]


def test_a_machine_that_does_not_run(tmp_path):
    with pytest.raises(QmpError, match="Does the machine run"):
        Qmp(tmp_path / "nothing")


def test_refusals_and_disappearing_are_told(qemu):
    with Qmp(qemu.path) as qmp:
        with pytest.raises(QmpError, match="explode: no such thing"):
            qmp.ask("explode")
        assert qmp.ask("query-status")["status"] == "running"
        event = qmp.event(0.01)
        assert event is not None
        assert event["event"] == "RTC_CHANGE"
        assert qmp.event(0.01) is None
        with pytest.raises(QmpError, match="went away"):
            qmp.ask("vanish")


def agent(request: dict[str, Any]) -> list[Any]:
    if request["execute"] == "guest-sync-delimited":  # what an earlier client left comes first
        return [
            b'{"return": 99}\n',
            b"\xff" + json.dumps({"return": request["arguments"]["id"]}).encode() + b"\n",
        ]
    return [{"return": 2}] if request["execute"] == "guest-fsfreeze-freeze" else [{"error": {"desc": "no"}}]


def test_freeze_through_the_agent(run, places, qemu):
    server = Scripted(places.agent, agent)
    try:
        assert run("freeze") == (0, {"filesystems": 2})
    finally:
        server.close()
    assert asked(qemu) == []


def test_a_guest_without_agent_is_paused_instead(run, qemu):
    code, answer = run("freeze")
    assert (code, answer["filesystems"]) == (0, 0)
    assert run("thaw") == (0, {"filesystems": 0})
    assert asked(qemu) == ["stop", "cont"]


@pytest.mark.parametrize("nonsense", [b"[]\n", b"\xff\xfe\n", b'{"return": "later"}\n'])
def test_a_hostile_agent_only_costs_time(tmp_path, nonsense):
    server = Scripted(tmp_path / "agent", lambda request: [nonsense])
    try:
        with pytest.raises(AgentError, match="does not answer"):
            ask_agent(server.path, "guest-fsfreeze-thaw", 0.1)
    finally:
        server.close()
