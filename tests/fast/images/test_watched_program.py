"""The job plugin waits for no program of a container for ever: compiled from the image's own source."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import ROOT

HERE = Path(__file__).resolve().parent
INSIDE = ROOT / "images/slurm/inside"
KIB = 1024
ANSWER_KIB = 256
"""Of container.h: the longest answer that is taken."""

Watch = Callable[..., list[str]]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled program, with less patience."""
    compiler = shutil.which("cc") or shutil.which("tcc")
    if compiler is None:
        pytest.skip("not_run: there is no C compiler")
    built = tmp_path_factory.mktemp("watched") / "watched"
    times = ("-DQUIET_TIME=1000", "-DGRACE_TIME=300", "-DASK_TIME=200")
    command = [compiler, "-Wall", "-Werror", *times, f"-I{INSIDE}", "-o", built, HERE / "watched_program.c"]
    subprocess.run(command, check=True)
    return built


@pytest.fixture
def watch(watched: Path) -> Iterator[Watch]:
    """Run a shell command as the program; return its messages, last its exit code and bytes of answer."""

    def run(program: str, question: str = "true", time_after_job: int = 0) -> list[str]:
        command = [watched, program, question, "7", str(time_after_job), str(ANSWER_KIB * KIB)]
        # slurmstepd blocks signals, and its children would inherit that.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGALRM])
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM, signal.SIGALRM])
        return done.stdout.splitlines()

    yield run


ALIVE = "for i in 1 2 3 4 5 6; do sleep 0.25; echo >&2; done"
"""For longer than a program may be silent."""


def print_kib(size: int, to: int) -> str:
    return f"head -c {size * KIB} /dev/zero | tr '\\0' x >&{to}"


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("size", [1, 64, 70, 200])
def test_a_program_may_fill_both_pipes_in_any_order(watch: Watch, first: int, size: int) -> None:
    """A pipe holds 64 KiB. Before, slurmstepd read the messages to their end and then the answer."""
    *_, last = watch(f"{print_kib(size, first)}; {print_kib(size, 3 - first)}; {print_kib(1, first)}")
    assert last == f"0 {(size + (first == 1)) * KIB}"


@pytest.mark.parametrize("beside", [70, 300])
def test_an_answer_that_is_too_long_ends_the_program(watch: Watch, beside: int) -> None:
    said = watch(f"{print_kib(beside, 2)}; {print_kib(300, 1)}; sleep 600")
    assert said[-2:] == ["error: its answer is too long", f"-1 {ANSWER_KIB * KIB}"]


def test_of_very_many_messages_the_rest_is_not_shown(watch: Watch) -> None:
    *messages, last = watch(f"{print_kib(300, 2)}; echo done")
    assert last == "0 5" and sum(map(len, messages)) <= 68 * KIB
    assert watch("yes '' | head -c 9000000 >&2; echo more >&2") == ["more", "0 0"]


def test_messages_come_line_by_line_and_the_answer_is_whole(watch: Watch) -> None:
    assert watch("printf 'a\\0b'; printf 'first\\nsec' >&2; printf 'ond\\n\\nlast' >&2; exit 3") == [
        *("first", "second", "last", "3 3")
    ]


def test_a_program_that_says_nothing_is_ended_and_one_that_shows_life_is_not(watch: Watch) -> None:
    begin = time.monotonic()
    *_, why, last = watch("sleep 600")
    assert "said nothing for too long" in why and last == "-1 0" and time.monotonic() < begin + 4
    assert watch(f"{ALIVE}; echo done") == ["0 5"]


@pytest.mark.parametrize(
    "stubborn",
    ["trap '' TERM; sleep 600 & wait; sleep 600", "kill -STOP $$", "exec 1>&- 2>&-; sleep 600"],
    ids=["ignores SIGTERM", "is stopped", "closes its pipes"],
)
def test_a_program_that_does_not_end_by_itself_is_killed(watch: Watch, stubborn: str) -> None:
    *_, why, last = watch(stubborn)
    assert "said nothing for too long" in why and last == "-1 0"


def test_what_a_program_leaves_in_its_group_ends_with_it_and_is_not_waited_for(
    watch: Watch, tmp_path: Path
) -> None:
    """It holds the pipes, so that their end never comes."""
    begin = time.monotonic()
    assert watch(f"sleep 600 & echo $! >{tmp_path}/left; setsid sleep 5 & exit 4")[-1] == "4 0"
    assert time.monotonic() < begin + 2
    left = int((tmp_path / "left").read_text())
    for _ in range(100):
        if not is_running(left):
            return
        time.sleep(0.05)
    pytest.fail("a process of the group is left")


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


STATES = ("CANCELLED", "COMPLETING", "TIMEOUT", "PENDING", "NODE_FAIL", "COMPLETED")
NOT_OVER = (
    "echo 7 RUNNING; echo 8 CANCELLED",
    "echo 7 SUSPENDED",
    "echo 70 CANCELLED",  # of another job
    "echo 7 CANCELLED; echo 7 RUNNING",
    "true",  # Slurm does not answer
    "exec sleep 600",
    "echo; printf %0100000d 7",
)


def test_a_program_is_ended_when_slurm_says_that_its_job_is_over(watch: Watch) -> None:
    """The program's own word does not count: it runs as the user, who could forge it."""

    def said(state: str) -> list[str]:
        return watch(f"{ALIVE}; {ALIVE}; {ALIVE}", f"echo 70 RUNNING; echo 7 {state}; echo 8 RUNNING")

    for state, (*_, why, last) in at_once(said, STATES).items():
        assert "the job is over" in why and last == "-1 0", state


def test_a_program_of_a_job_that_runs_or_is_not_known_goes_on(watch: Watch) -> None:
    said = at_once(lambda question: watch(f"{ALIVE}; echo done", question), NOT_OVER)
    assert said == dict.fromkeys(NOT_OVER, ["0 5"])


def at_once(watch: Callable[[str], list[str]], cases: tuple[str, ...]) -> dict[str, list[str]]:
    with ThreadPoolExecutor(len(cases)) as threads:
        return dict(zip(cases, threads.map(watch, cases), strict=True))


def test_what_follows_a_job_has_time_to_end(watch: Watch) -> None:
    """A container is saved when its tasks have ended, and so, often, has the job."""
    assert watch(f"{ALIVE}; echo done", "echo 7 COMPLETING", 5000) == ["0 5"]
    assert "the job is over" in watch(f"{ALIVE}; {ALIVE}", "echo 7 COMPLETING", 300)[-2]
