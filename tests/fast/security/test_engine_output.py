"""Output of a tenant's program takes bounded memory and linear time on its way through the engine."""

import subprocess
import time
from pathlib import Path, PurePosixPath

import pytest

from neocloud.engines.base import MAX_LINE_BYTES, MAX_LOG_PAGE_BYTES, MAX_LOG_PAGE_LINES, LogPage
from neocloud.engines.podman.container_logs import page_of
from neocloud.engines.podman.execution import STDERR, STDOUT, FrameDecoder, LineJoiner
from neocloud.services.slurm.types import CommandResult
from neocloud.services.tuning.reconcile import slurm_files

TIME = "2026-11-22T16:21:17.123456789+00:00"


def frame(stream: int, content: bytes) -> bytes:
    return bytes([stream, 0, 0, 0]) + len(content).to_bytes(4) + content


def test_a_frame_is_not_held_until_it_is_whole() -> None:
    decoder = FrameDecoder()
    announced = bytes([STDOUT, 0, 0, 0]) + (2**32 - 1).to_bytes(4)
    assert list(decoder.feed(announced)) == []
    for _ in range(3):
        assert list(decoder.feed(b"x" * 1000)) == [(STDOUT, b"x" * 1000)]


def test_frames_are_found_however_the_bytes_arrive() -> None:
    data = frame(STDOUT, b"out") + frame(STDERR, b"") + frame(STDERR, b"error")
    for size in range(1, len(data) + 1):
        decoder, seen = FrameDecoder(), {STDOUT: b"", STDERR: b""}
        for at in range(0, len(data), size):
            for stream, piece in decoder.feed(data[at : at + size]):
                seen[stream] += piece
        assert seen == {STDOUT: b"out", STDERR: b"error"}


def test_a_line_without_end_is_split_and_not_kept() -> None:
    joiner = LineJoiner()
    text = "".join(chr(97 + number % 26) for number in range(5 * MAX_LINE_BYTES))
    lines: list[str] = []
    for at in range(0, len(text), 1000):
        found = list(joiner.feed(STDOUT, text[at : at + 1000].encode()))
        assert all(len(line) == MAX_LINE_BYTES for line in found)
        lines += found
    lines += joiner.rest()
    assert "".join(lines) == text and len(lines) == 5


def test_a_line_of_just_the_limit_is_one_line() -> None:
    for size in (MAX_LINE_BYTES - 1, MAX_LINE_BYTES):
        joiner = LineJoiner()
        assert [*joiner.feed(STDOUT, b"x" * size), *joiner.feed(STDOUT, b"\nnext\n")] == ["x" * size, "next"]


def test_sixteen_megabytes_without_a_newline_take_linear_time() -> None:
    """They took 11.7 s when each piece copied all of the line before it; the bound is generous."""
    joiner, begun = LineJoiner(), time.process_time()
    count = sum(len(list(joiner.feed(STDOUT, b"x" * 4096))) for _ in range(4096))
    assert count >= 16 * 2**20 // MAX_LINE_BYTES - 1
    assert time.process_time() - begun < 6


def records(file: Path, *texts: str, kind: str = "F") -> None:
    with file.open("a") as log:
        log.writelines(f"{TIME} stdout {kind} {text}\n" for text in texts)


def test_tail_of_a_full_log_decodes_its_end_alone(tmp_path: Path) -> None:
    log = tmp_path / "ctr.log"
    records(log, *(f"{number:06d} {'x' * 200}" for number in range(100_000)))
    assert log.stat().st_size > 5 * MAX_LOG_PAGE_BYTES
    page = page_of(log, first_line=0, tail=2)
    assert [line[:6] for line in page.lines] == ["099998", "099999"]
    assert page.next_line == 100_000
    page = page_of(log, first_line=0, tail=50_000)
    assert sum(map(len, page.lines)) <= MAX_LOG_PAGE_BYTES and len(page.lines) <= MAX_LOG_PAGE_LINES
    assert page.lines[-1].startswith("099999")


def test_pages_follow_each_other_without_a_gap(tmp_path: Path) -> None:
    log = tmp_path / "ctr.log"
    wanted = [f"{number:06d} {'x' * (number % 500)}" for number in range(30_000)]
    records(log, *wanted)
    seen: list[str] = []
    while (page := page_of(log, first_line=len(seen), tail=0)).lines:
        assert len(page.lines) <= MAX_LOG_PAGE_LINES
        assert sum(map(len, page.lines)) <= MAX_LOG_PAGE_BYTES + MAX_LINE_BYTES
        seen += page.lines
        assert page.next_line == len(seen)
    assert seen == wanted


def test_parts_of_a_line_are_joined_and_split_at_the_limit(tmp_path: Path) -> None:
    log = tmp_path / "ctr.log"
    records(log, "one ", kind="P")
    records(log, "line", "next")
    records(log, *("x" * 8000 for _ in range(4000)), kind="P")
    page = page_of(log, first_line=0, tail=0)
    assert page.lines[:2] == ("one line", "next")
    assert {len(line) for line in page.lines[2:-1]} == {MAX_LINE_BYTES}
    assert sum(map(len, page.lines)) <= MAX_LOG_PAGE_BYTES + MAX_LINE_BYTES
    assert page.next_line < 4003


def test_bytes_that_are_no_text_count_as_what_they_become(tmp_path: Path) -> None:
    log = tmp_path / "ctr.log"
    log.write_bytes((TIME.encode() + b" stdout F " + b"\xff" * 8000 + b"\n") * 1000)
    for page in (page_of(log, first_line=0, tail=0), page_of(log, first_line=0, tail=1000)):
        assert sum(len(line.encode()) for line in page.lines) <= MAX_LOG_PAGE_BYTES + 3 * MAX_LINE_BYTES


def test_a_log_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "ctr.log").symlink_to("/etc/passwd")
    with pytest.raises(OSError):
        page_of(tmp_path / "ctr.log", first_line=0, tail=1)
    assert page_of(tmp_path / "none.log", first_line=4, tail=0) == LogPage((), 0)


async def test_a_log_of_any_size_is_not_read_back_from_a_cluster(tmp_path: Path) -> None:
    """The real commands, run here: the large log stays there, what tells how the job ended comes."""
    there, work = tmp_path / "there", tmp_path / "work"
    there.mkdir()
    with (there / "log.txt").open("wb") as log:
        log.truncate(20 * 2**30)
    (there / "outcome.json").write_text("{}")
    taken: list[int] = []

    async def run(command: list[str], /, *, max_output_bytes: int = 2**20) -> CommandResult:
        done = subprocess.run(["timeout", "20", *command], capture_output=True, check=False)
        taken.append(len(done.stdout))
        assert len(done.stdout) <= max_output_bytes
        return CommandResult(done.returncode, done.stdout, done.stderr)

    await slurm_files.read_back(run, PurePosixPath(there), work)
    assert sorted(path.name for path in work.iterdir()) == ["finetune", "outcome.json"]
    assert taken[0] < 100_000
