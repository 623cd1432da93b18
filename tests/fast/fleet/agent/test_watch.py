"""The agent that stays: it writes what changes, once, whatever happens to it, its clock and its disk."""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from neocloud.fleet.agent.document import decode, from_json
from neocloud.fleet.agent.expected import Expected
from neocloud.fleet.agent.host_files import Tree
from neocloud.fleet.agent.loop import STATE, Agent
from neocloud.fleet.agent.spool import ACKNOWLEDGED, LEAST_BYTES, RECORDS, Spool
from neocloud.fleet.policy.policy_file import default_policy
from tests.fast.fleet.agent import trees
from tests.fast.fleet.agent.conftest import Node
from tests.fast.fleet.agent.test_checks import InThisProcess
from tests.fast.fleet.agent.trees import PORT, write

XID = "3,{sequence},{time},-;NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen off the bus.\n"


class Watched:
    """An agent on a tree in this process, on a clock that tests set. `restart` is as after kill -9."""

    def __init__(self, tmp_path: Path, most_bytes: int = 1 << 20) -> None:
        self.root, self.folder, self._most = tmp_path / "root", tmp_path / "spool", most_bytes
        trees.h100_node(self.root)
        self.now, self._interval = 5000.0, 0
        self.spool: Spool | None = None
        self.restart()

    def restart(self) -> None:
        if self.spool is not None:
            self.spool.close()
        self.spool = Spool(self.folder, self._most)
        self.agent = Agent(
            Tree(self.root),
            default_policy(),
            Expected(mounts=("/jail",)),
            self.folder,
            self.spool,
            host="node-1",
            now=lambda: self.now,
            children=InThisProcess(),
        )
        self._interval = 0

    def step(self, seconds: float = 10.0) -> list[dict[str, Any]]:
        """Return the records that one step adds."""
        assert self.spool is not None
        before = self.spool.last
        self.now += seconds
        self.agent.step(self._interval)
        self._interval += 6
        return [each for each in self.spool.records() if each["n"] > before]

    def log(self, *sequences: int, at_s: int = 1) -> None:
        with (self.root / "dev/kmsg").open("a") as file:
            for each in sequences:
                file.write(XID.format(sequence=each, time=at_s * 1_000_000))


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def said(records: list[dict[str, Any]]) -> dict[str, str]:
    """Return what the records say of each check: a status, or not_run."""
    found = dict[str, str]()
    for record in records:
        if record["kind"] == "changes":
            document = from_json(record["document"], host="node-1")
            found |= {each.check: each.status.value for each in document.verdicts}
            found |= {each.check: "not_run" for each in document.not_run}
    return found


def test_the_first_records_have_everything_and_the_next_only_what_changed(watched: Watched) -> None:
    first = watched.step()
    assert [each["kind"] for each in first] == ["changes", "heartbeat"] and len(said(first)) > 40
    second = said(watched.step())
    assert set(second.values()) == {"pass"} and "ib_link_downed" in second, "a second look shows growth"
    assert watched.step() == []
    write(watched.root, {"sys/class/nvme/nvme0/state": "dead"})
    assert said(watched.step()) == {"nvme_not_live": "fail"}
    write(watched.root, {"sys/class/nvme/nvme0/state": "live"})
    assert said(watched.step()) == {"nvme_not_live": "pass"}


def test_another_device_is_another_change_and_another_sample_is_none(watched: Watched) -> None:
    watched.step()
    watched.step()
    write(watched.root, {f"{PORT}/counters/link_downed": "8"})
    assert said(watched.step()) == {"ib_link_downed": "fail"}
    write(watched.root, {f"{PORT}/counters/link_downed": "9"})
    assert said(watched.step()) == {}, "the same port of the same check"
    other = PORT.replace("mlx5_0", "mlx5_1")
    write(watched.root, {f"{other}/counters/link_downed": "8"})
    assert said(watched.step()) == {"ib_link_downed": "fail"}


def test_a_heartbeat_comes_each_minute_with_counts(watched: Watched) -> None:
    watched.step()
    kinds = [each["kind"] for _ in range(20) for each in watched.step(10)]
    assert kinds.count("heartbeat") == 3
    beat = next(each for each in watched.step(60) if each["kind"] == "heartbeat")
    assert beat["boot"] == trees.BOOT and beat["checks"]["fail"] == 0 and beat["checks"]["pass"] > 20


def test_a_restart_reports_nothing_twice_and_forgets_nothing(watched: Watched) -> None:
    watched.step()
    watched.step()
    write(watched.root, {f"{PORT}/counters/link_downed": "8"})
    watched.log(1)
    assert said(watched.step()) == {"ib_link_downed": "fail", "xid.79": "fail"}
    watched.step(60)  # a heartbeat saves what is known
    watched.restart()
    assert said(watched.step()) == {}
    watched.log(2, 3)
    watched.restart()
    assert said(watched.step()) == {}, "lines of one burst are one fault"
    watched.log(4, at_s=700)
    assert said(watched.step()) == {"xid.79": "fail"}, "and this is another"


def test_a_restart_before_anything_was_saved_reports_nothing_twice(watched: Watched) -> None:
    watched.step()
    watched.log(1)
    assert said(watched.step())["xid.79"] == "fail"
    (watched.folder / STATE).unlink()
    watched.restart()
    again = said(watched.step())
    assert "xid.79" not in again and set(again.values()) <= {"not_run"}, "counters begin again, faults do not"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"boot": 1}', f'{{"boot": "{trees.BOOT}", "n": []}}'])
def test_a_damaged_state_is_done_without(watched: Watched, content: str) -> None:
    watched.step()
    (watched.folder / STATE).write_text(content)
    watched.restart()
    assert "nvme_not_live" not in said(watched.step())


def test_another_boot_is_reported_again_and_starts_its_log_at_the_beginning(watched: Watched) -> None:
    watched.step()
    watched.log(1)
    watched.step()
    write(watched.root, {"proc/sys/kernel/random/boot_id": "66666666-7777-8888-9999-aaaaaaaaaaaa"})
    (watched.root / "dev/kmsg").write_text("6,0,1,-;Linux version 6.12\n")
    watched.restart()
    records = watched.step()
    assert {each["document"]["boot"] for each in records if each["kind"] == "changes"} == {
        "66666666-7777-8888-9999-aaaaaaaaaaaa"
    }
    again = said(records)
    assert again["nvme_not_live"] == "pass" and "xid.79" not in again
    watched.log(1)
    assert said(watched.step())["xid.79"] == "fail", "the number 1 of this boot is another line"


def test_records_that_the_kernel_overwrote_are_unknown(watched: Watched) -> None:
    watched.step()
    (watched.root / "dev/kmsg").write_text("6,5000,1,-;much later\n")
    assert said(watched.step())["kernel_log"] == "unknown"
    assert said(watched.step())["kernel_log"] == "pass"


def test_a_full_spool_keeps_changes_back_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(tmp_path, LEAST_BYTES)
    watched.step()
    watched.step()
    assert watched.spool is not None
    while watched.spool.append("filling", {"text": "x" * 100}):
        pass
    write(watched.root, {"sys/class/nvme/nvme0/state": "dead"})
    assert said(watched.step()) == {} and "The spool is full" in caplog.text
    watched.restart()
    assert said(watched.step()) == {}, "nor after a restart"
    (watched.folder / ACKNOWLEDGED).write_text(str(watched.spool.last))
    assert said(watched.step())["nvme_not_live"] == "fail", "nothing was lost"
    watched.restart()
    assert "nvme_not_live" not in said(watched.step()), "nor is it said twice"


def test_a_clock_that_lies_changes_no_duration(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.step()
    write(watched.root, {f"{PORT}/state": "1: DOWN"})
    lies: Iterator[float] = iter([-5.0, 1e300, 0.0, 4e9])
    monkeypatch.setattr(time, "time", lambda: next(lies, 0.0))
    assert said(watched.step(10))["ib_port_down_s"] == "unknown"
    assert "ib_port_down_s" not in said(watched.step(20))
    assert said(watched.step(20))["ib_port_down_s"] == "fail", "31 seconds by the clock of the boot"


@contextmanager
def running(node: Node, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    command = node.command("watch", "--spool", str(node.root.parent / "spool"), *options)
    started = subprocess.Popen(command, env=node.environment, stderr=subprocess.DEVNULL)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def records(node: Node) -> list[dict[str, Any]]:
    path = node.root.parent / "spool" / RECORDS
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    return [json.loads(line) for line in lines[:-1]]


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_killed_at_any_moment_it_loses_and_repeats_nothing(node: Node) -> None:
    """A real process with real probes, killed 12 times while its node changes."""
    chance, state = random.Random(1), ["live"]
    for _ in range(12):
        with running(node, "--interval", "0.1") as agent:
            until(lambda: records(node))
            state.append(chance.choice(["live", "dead", "resetting"]))
            write(node.root, {"sys/class/nvme/nvme0/state": state[-1]})
            time.sleep(chance.random() * 0.4)  # the moment at which it is killed
            agent.send_signal(signal.SIGKILL)
    wanted = "pass" if state[-1] == "live" else "fail"
    with running(node, "--interval", "0.1"):
        until(lambda: history(node)["nvme_not_live"][-1] == wanted)
    for check, words in history(node).items():
        assert all(first != second for first, second in zip(words, words[1:], strict=False)), (check, words)
    numbers = [each["n"] for each in records(node)]
    assert numbers == list(range(1, len(numbers) + 1))


def history(node: Node) -> Mapping[str, list[str]]:
    """Return every word of each check, in order; with its devices, as another device is another word."""
    found = dict[str, list[str]]()
    for record in records(node):
        for check, mark in record.get("marks", {}).items():
            found.setdefault(check, []).append(mark)
    return {check: [mark if check != "nvme_not_live" else mark.split()[0] for mark in marks]
            for check, marks in found.items()} | ({} if found else {"nvme_not_live": [""]})  # fmt: skip


def test_a_signal_ends_it_at_once(node: Node) -> None:
    with running(node, "--interval", "3600") as agent:
        until(lambda: records(node))
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(10) == 0


def test_a_gpu_that_slows_down_again_and_again(node: Node) -> None:
    """Seven of its readings in ten minutes are more than 0.6 a minute."""
    node.gpus("reasons 8", *[""] * 7)
    with running(node, "--interval", "0.1"):
        until(lambda: any("hw_slowdown" in each.get("marks", {}) for each in records(node)[1:]))
    verdicts = [
        each
        for record in records(node)[1:]
        if "document" in record
        for each in record["document"]["verdicts"]
    ]
    slow = next(each for each in verdicts if each["check"] == "hw_slowdown")
    assert (slow["status"], slow["action"], slow["source"]) == ("fail", "none", "gpud")
    assert trees.GPUS[0] in slow["sample"] and "reasons 0x8" in slow["sample"]


def test_an_xid_of_the_driver_is_found_in_the_log_of_the_kernel(node: Node) -> None:
    """The driver writes the line when it loses the GPU, so a later look finds both."""
    node.gpus("xid 79 pid=1, GPU has fallen off the bus.\nlost_after 3", *[""] * 7)
    node.check()
    verdicts = node.verdicts()
    assert verdicts["xid.79"].status == "fail" and verdicts["xid.79"].action == "reboot"
    assert verdicts["xid.79"].sample.startswith(f"{trees.GPUS[0]}: ")
    assert verdicts["gpu_lost"].status == "fail"


def test_the_archive_runs_on_a_bare_python(node: Node, tmp_path: Path) -> None:
    from neocloud.fleet.agent.bundle import write_bundle  # noqa: PLC0415 - only here

    archive = tmp_path / "agent.pyz"
    write_bundle(archive)
    first = archive.read_bytes()
    write_bundle(archive)
    assert archive.read_bytes() == first, "the same release makes the same file"
    command = node.command("check", "--seconds", "0")
    at = command.index("-m")
    bare = [command[0], "-I", "-S", str(archive), *command[at + 2 :]]
    ran = subprocess.run(bare, env=node.environment, cwd="/", capture_output=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr.decode()
    document = decode(ran.stdout, host="node-1")
    here = node.check()
    assert {each.check: (each.status, each.threshold, each.source) for each in document.verdicts} == {
        each.check: (each.status, each.threshold, each.source) for each in here.verdicts
    }
    assert any(each.check == "gpu_missing" for each in document.verdicts), "NVML's bindings are in it"
    assert os.access(archive, os.X_OK)
