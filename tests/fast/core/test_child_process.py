"""Child processes: found again and never mistaken, restarted with pauses, and stopped within a deadline."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from neocloud.core.child_process import LOG_LIMIT_BYTES, Backoff, Child, Deaths, deaths_in
from neocloud.core.process import Process

LONG_SECONDS = 60.0
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); print(0, flush=True); time.sleep(600)",
]


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    made = Child("sleeper", tmp_path / "log" / "child.log", tmp_path / "run" / "child.json")
    yield made
    if made.process is not None:
        made.process.send(signal.SIGKILL)
        assert made.process.wait(LONG_SECONDS)


def again(child: Child) -> Child:
    """Return the child as the next parent sees it."""
    return Child(child.name, child.log_file, child.record_file)


def test_the_next_parent_finds_it_until_it_ends(child: Child) -> None:
    process = child.start(SLEEP, details={"port": 7})
    found = again(child).find()
    assert found is not None and (found.pid, found.began) == (process.pid, process.began)
    assert again(child).record()["port"] == 7
    process.send(signal.SIGKILL)
    assert process.wait(LONG_SECONDS)
    assert (process.exit_code, process.why_ended) == (-9, "was killed by SIGKILL")
    assert again(child).find() is None


def test_one_that_ended_and_was_not_reaped_is_not_found(child: Child) -> None:
    process = child.start(SLEEP)
    descriptor = os.pidfd_open(process.pid)
    process.send(signal.SIGKILL)
    os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOWAIT)
    os.close(descriptor)
    assert again(child).find() is None


def test_another_process_with_its_id_is_never_mistaken_for_it(child: Child) -> None:
    child.start(SLEEP)
    assert child.process is not None and child.record_file is not None
    mine = again(child).find()
    child.record_file.write_text(json.dumps({"pid": child.process.pid, "began": child.process.began - 1}))
    assert mine is not None and again(child).find() is None


@pytest.mark.parametrize("boot", [{"boot": "the one before"}, {}])
def test_a_process_of_another_boot_is_not_mistaken_for_it(child: Child, boot: dict[str, str]) -> None:
    """Both had the same id and started as long after the boot. Earlier releases do not record the boot."""
    child.start(SLEEP)
    assert child.process is not None and child.record_file is not None
    identity = {"pid": child.process.pid, "began": child.process.began}
    child.record_file.write_text(json.dumps(identity | boot))
    assert (again(child).find() is None) == bool(boot)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"pid": "x"}', '{"pid": -1, "began": 0}', '{"pid": null}'])
def test_a_damaged_record_is_none(child: Child, text: str) -> None:
    assert child.record_file is not None
    child.record_file.parent.mkdir()
    child.record_file.write_text(text)
    assert child.find() is None
    assert deaths_in(child.record()) == Deaths()


def test_it_has_a_session_of_its_own_and_no_input(child: Child) -> None:
    process = child.start(
        [sys.executable, "-c", "import os, sys; print(os.getsid(0), repr(sys.stdin.read()), os.getcwd())"]
    )
    assert process.wait(LONG_SECONDS)
    assert child.output().split() == [str(process.pid), "''", "/"]
    assert child.log_file.stat().st_mode & 0o777 == 0o600


def test_the_output_is_that_of_the_last_start(child: Child) -> None:
    for word in ("first", "second"):
        process = child.start([sys.executable, "-c", f"print('{word}')"])
        assert process.wait(LONG_SECONDS) and process.exit_code == 0
    assert child.output() == "second\n"
    assert child.log_file.read_text() == "first\nsecond\n"


def test_a_long_log_is_put_aside(child: Child) -> None:
    child.log_file.parent.mkdir()
    with child.log_file.open("wb") as log:
        log.truncate(LOG_LIMIT_BYTES + 1)
    child.start(SLEEP)
    assert child.log_file.stat().st_size == 0
    assert child.log_file.with_suffix(".log.1").stat().st_size == LOG_LIMIT_BYTES + 1


def test_one_that_cannot_be_recorded_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    child = Child("sleeper", tmp_path / "child.log", tmp_path / "file" / "child.json")
    with pytest.raises(OSError, match="file"):
        child.start(SLEEP)
    assert child.process is not None and child.process.exit_code is not None


def test_one_that_ignores_sigterm_is_killed_after_the_grace(child: Child) -> None:
    process = child.start(STUBBORN)
    assert child.wait_until_ready(lambda: "0" in child.output(), LONG_SECONDS)
    assert process.stop(0.2)
    assert process.exit_code == -signal.SIGKILL


def test_one_that_ends_is_not_ready(child: Child) -> None:
    child.start([sys.executable, "-c", "print('no'); raise SystemExit(3)"])
    assert not child.wait_until_ready(lambda: False, LONG_SECONDS)
    assert child.process is not None and child.process.why_ended == "ended with exit code 3"


def test_one_that_is_late_is_not_ready(child: Child) -> None:
    process = child.start(SLEEP)
    assert not child.wait_until_ready(lambda: False, 0.1)
    assert not process.wait(0)


def test_waiting_ends_when_something_else_wakes_it(child: Child) -> None:
    process = child.start(SLEEP)
    reader, writer = os.pipe()
    os.write(writer, b"x")
    began = time.monotonic()
    assert not process.wait(LONG_SECONDS, wake=reader)
    assert time.monotonic() - began < LONG_SECONDS
    os.close(reader)
    os.close(writer)


def test_one_that_was_dropped_is_reaped_at_the_next_start(child: Child) -> None:
    pid = child.start(SLEEP).pid
    child.process = None
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    child.start(SLEEP)
    assert not Path(f"/proc/{pid}").exists()


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_good_life(
    child: Child, caplog: pytest.LogCaptureFixture
) -> None:
    child.backoff = Backoff(first_seconds=0.5, longest_seconds=3.0, good_life_seconds=10.0)
    child.start(SLEEP)
    with caplog.at_level(logging.WARNING):
        assert [child.note_death(1.0, "was killed") for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
        assert "5 short lives in a row" in caplog.messages[-1]
        assert str(child.log_file) in caplog.messages[-1]
        assert child.note_death(11.0, "was killed") == 0.5
        assert "in a row" not in caplog.messages[-1]
    assert Backoff().pause(10**6) == Backoff().longest_seconds


def test_the_count_of_restarts_outlives_the_parent(child: Child) -> None:
    child.start(SLEEP)
    child.note_death(1.0, "was killed")
    assert child.process is not None
    child.process.stop(LONG_SECONDS)
    process = child.start(SLEEP)
    found = again(child)
    found.adopt(process)
    assert (found.deaths.restarts, found.deaths.why) == (1, "was killed")


def test_a_full_disk_does_not_keep_it_from_being_restarted(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    child.start(SLEEP)
    monkeypatch.setattr("neocloud.core.child_process.write_file", full)
    assert child.note_death(1.0) > 0
    assert child.deaths.restarts == 1
    assert child.process is not None
    child.process.stop(0)
    assert not child.start(SLEEP).wait(0)


def test_one_that_cannot_be_watched_does_not_run(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def too_many(pid: int) -> int:
        started.append(pid)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", too_many)
    with pytest.raises(OSError, match="Too many"):
        child.start(SLEEP)
    assert started and not Path(f"/proc/{started[0]}").exists()


def test_a_process_that_is_not_a_child_is_waited_for_and_stopped(child: Child) -> None:
    other = subprocess.Popen(SLEEP)
    try:
        found = Process.of(other.pid)
        assert found is not None and not found.wait(0)
        assert found.stop(LONG_SECONDS)
        assert (found.exit_code, found.why_ended) == (None, "ended")
    finally:
        other.kill()
        other.wait()
    assert Process.find(0, 0) is None
