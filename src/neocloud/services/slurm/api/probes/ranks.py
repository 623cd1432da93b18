"""Look at the ranks of a job on this node: step times that they wrote, and stacks of their Python processes.

Usage: python3 ranks.py PY_SPY, in a step of the job, as the job's user. Prints one line of JSON. Everything
it reads was written by the job: sizes and counts are bounded, and a file that is a link is not read.
"""

import json
import os
import re
import select
import stat
import subprocess
import sys
import time
from typing import IO, TypeAlias, TypedDict, TypeGuard

MOST_RANKS = 64
MOST_PROCESSES = 20_000
MOST_TAIL_BYTES = 256 * 1024
MOST_STEPS = 200
MOST_FRAMES = 24
MOST_NAME = 120
MOST_DUMP_BYTES = 2 * 1024 * 1024
MOST_ENVIRONMENT_BYTES = 256 * 1024
MOST_LINE_BYTES = 256 * 1024
"""Limit of the report, for the control plane."""
SAMPLES, PAUSE_SECONDS = 3, 1.0
DUMP_SECONDS = 10
ALL_SECONDS = 60
RANK_NAMES = ("RANK", "SLURM_PROCID")
FOLDER_NAME = "NEOCLOUD_STEP_TIMES"
PYTHON = re.compile(r"python[0-9.]*t?")
Variables: TypeAlias = dict[str, str]
Process: TypeAlias = tuple[int, int, bool, Variables]
"""pid, parent, is Python, environment."""
Rank: TypeAlias = tuple[int, bool, Variables]
"""pid, is Python, environment."""
StepRow: TypeAlias = tuple[int, float, float | None]
"""Step, seconds, waited."""
Frame: TypeAlias = tuple[str, str, int]
"""Function, file, line."""


class Report(TypedDict):
    rank: int
    times: list[StepRow]
    stacks: list[list[Frame]]
    why: list[str]
    moved: bool | None


def read_bounded(path: str, most: int) -> bytes:
    with open(path, "rb") as file:
        return file.read(most)


def environment_of(pid: str) -> Variables:
    raw = read_bounded(f"/proc/{pid}/environ", MOST_ENVIRONMENT_BYTES)
    pairs = (item.partition(b"=") for item in raw.split(b"\0"))
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, _, value in pairs}


def rank_number(variables: Variables, name: str) -> int | None:
    text = variables.get(name, "")
    return int(text) if re.fullmatch("[0-9]{1,7}", text) else None


def processes(job: str, own_step: str) -> list[Process]:
    """Return this user's processes in the job, but this step."""
    found: list[Process] = []
    for name in [each for each in os.listdir("/proc") if each.isdigit()][:MOST_PROCESSES]:
        try:
            if os.stat(f"/proc/{name}").st_uid != os.getuid():
                continue
            variables = environment_of(name)
            if variables.get("SLURM_JOB_ID") != job or variables.get("SLURM_STEP_ID") == own_step:
                continue
            fields = read_bounded(f"/proc/{name}/stat", 4096).rpartition(b")")[2].split()
            program = os.path.basename(os.readlink(f"/proc/{name}/exe"))
        except (OSError, IndexError):
            continue  # it ended, or is another user's
        found.append((int(name), int(fields[1]), PYTHON.fullmatch(program) is not None, variables))
    return found


def ranks_of(found: list[Process]) -> dict[int, Rank]:
    """Return the main process of each rank.

    A launcher such as torchrun gives its children RANK; without one a task's rank is SLURM_PROCID. The main
    process of a rank counts: Python before a shell around it, and the outermost before
    loaders that it started.
    """
    by_rank = (
        RANK_NAMES[0]
        if any(rank_number(each[3], RANK_NAMES[0]) is not None for each in found)
        else RANK_NAMES[1]
    )
    chosen: dict[int, tuple[tuple[bool, bool, int, int], Rank]] = {}
    known = {pid: (parent, is_python) for pid, parent, is_python, _ in found}

    def depth(pid: int) -> int:
        count = 0
        while pid in known and count < 100:
            pid, count = known[pid][0], count + known[pid][1]
        return count

    for pid, _, is_python, variables in found:
        rank = rank_number(variables, by_rank)
        if rank is None:
            continue
        is_task = variables.get("SLURM_STEP_ID", "").isdigit()
        order = (not is_python, not is_task, depth(pid), pid)
        if rank not in chosen or order < chosen[rank][0]:
            chosen[rank] = order, (pid, is_python, variables)
    return {rank: chosen[rank][1] for rank in sorted(chosen)[:MOST_RANKS]}


def times_file(job: str, pid: int, rank: int, variables: Variables) -> str:
    folder = variables.get(FOLDER_NAME) or f"step-times-{job}"
    return os.path.join(os.readlink(f"/proc/{pid}/cwd"), folder, f"rank-{rank}.jsonl")


def times_of(job: str, rank: int, found: Rank) -> tuple[list[StepRow], str]:
    pid, _, variables = found
    try:
        return step_times(times_file(job, pid, rank, variables))
    except OSError:
        return [], "it ended"


def step_times(path: str | os.PathLike[str]) -> tuple[list[StepRow], str]:
    """Return the rows of the end of the file, or why there are none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return [], "no file of step times"
    except OSError as error:
        return [], f"step times: {error.strerror}"
    state = os.fstat(handle)
    if not stat.S_ISREG(state.st_mode):
        os.close(handle)
        return [], "step times: not a file"
    with os.fdopen(handle, "rb") as file:
        start = max(0, state.st_size - MOST_TAIL_BYTES)
        file.seek(start)
        lines = file.read(MOST_TAIL_BYTES).split(b"\n")
    rows = [row for line in lines[1 if start else 0 :] if (row := step_row(line))]
    return rows[-MOST_STEPS:], "" if rows else "step times: no line that can be read"


def step_row(line: bytes) -> StepRow | None:
    try:
        found = json.loads(line)
        step, seconds, waited = found["step"], found["seconds"], found.get("waited")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if type(step) is not int or not 0 <= step < 10**12 or not is_seconds(seconds):
        return None
    if waited is not None and not (is_seconds(waited) and waited <= seconds):
        return None
    return step, round(seconds, 6), None if waited is None else round(waited, 6)


def is_seconds(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 10**7  # NaN is not


def stack_of(py_spy: str, pid: int) -> tuple[list[Frame], str]:
    """Return the functions of the main thread, innermost first, or why there are none."""
    command = [py_spy, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    try:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as child:
            assert child.stdout is not None
            try:
                output = read_until(child.stdout, time.monotonic() + DUMP_SECONDS)
            finally:
                child.kill()
        threads = json.loads(output)
        main = next((each for each in threads if each.get("thread_name") == "MainThread"), threads[0])
        frames = main["frames"][:MOST_FRAMES]
        return [
            (frame["name"][:MOST_NAME], short_path(frame["filename"]), int(frame["line"])) for frame in frames
        ], ""
    except TimeoutError:
        return [], f"its stack took more than {DUMP_SECONDS} s to read"
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return [], "its stack cannot be read"


def read_until(pipe: IO[bytes], deadline: float) -> bytes:
    handle = pipe.fileno()
    parts, size = list[bytes](), 0
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([handle], [], [], left)[0]:
            raise TimeoutError
        part = os.read(handle, 65536)
        if not part:
            return b"".join(parts)
        size += len(part)
        if size > MOST_DUMP_BYTES:
            raise ValueError("too long")
        parts.append(part)


def short_path(path: str) -> str:
    """Return the last three parts of a path: enough to name a module, and no more of where it lies."""
    return "/".join(path.split("/")[-3:])[-MOST_NAME:]


def main() -> None:
    began = time.monotonic()
    job = os.environ["SLURM_JOB_ID"]
    ranks = ranks_of(processes(job, os.environ.get("SLURM_STEP_ID", "")))
    report: dict[int, Report] = {
        rank: {"rank": rank, "times": [], "stacks": [], "why": [], "moved": None} for rank in ranks
    }
    before = {rank: times_of(job, rank, found)[0] for rank, found in ranks.items()}
    for sample in range(SAMPLES):
        time.sleep(PAUSE_SECONDS if sample else 0)
        for rank, (pid, is_python, _) in ranks.items():
            if time.monotonic() - began > ALL_SECONDS:
                stack, why = [], "there was no time for its stack"
            else:
                stack, why = stack_of(sys.argv[1], pid) if is_python else ([], "it is not a Python process")
            report[rank]["stacks"] += [stack] if stack else []
            if why and why not in report[rank]["why"]:
                report[rank]["why"].append(why)
    for rank, found in ranks.items():
        times, why = times_of(job, rank, found)
        report[rank]["moved"] = None if not times or not before[rank] else times[-1] != before[rank][-1]
        report[rank]["times"] = times
        report[rank]["why"] += [why] if why else []
    print(fitted(os.environ.get("SLURMD_NODENAME") or os.uname().nodename, [*report.values()]))


def fitted(node: str, ranks: list[Report]) -> str:
    """Return the report as one line that is not too long: step times go first, then the outer frames."""
    line = ""
    for steps, frames in ((MOST_STEPS, MOST_FRAMES), (60, 12), (20, 6), (5, 3), (0, 1)):
        for rank in ranks:
            rank["times"] = rank["times"][max(0, len(rank["times"]) - steps) :]
            rank["stacks"] = [stack[:frames] for stack in rank["stacks"]]
        line = json.dumps({"node": node, "ranks": ranks}, separators=(",", ":"))
        if len(line) <= MOST_LINE_BYTES:
            break
    return line


if __name__ == "__main__":
    main()
