"""Tries every option that the help of sbatch, srun and salloc names, as the user who runs it on a login node.

Prints, as JSON, what each said: {program: {option: [exit code, last line]}}. What waits is cancelled.
"""

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

OPTION = re.compile(r"^ +(?:-\w, +)?--([a-z][\w-]*)(\[?=?)", re.MULTILINE)
SKIPPED = {"help", "usage", "wrap"}
"""The first two start nothing; the last is how each job is written."""

VALUES = {
    **{"account": "root", "array": "0-1", "bbf": "/dev/null", "begin": "now", "bcast": "/tmp/copied"},
    **{"bcast-exclude": "/lib", "chdir": "/tmp", "clusters": "bank", "compress": "lz4", "constraint": "main"},
    **{"container": "/tmp", "cpu-bind": "none", "cpu-freq": "low", "deadline": "now+1hour"},
    **{"dependency": "afterany:1", "distribution": "cyclic", "epilog": "/bin/true", "error": "/dev/null"},
    **{"exclude": "worker-1", "exclusive": "user", "export": "NONE", "export-file": "variables"},
    **{"extra-node-info": "1:1:1", "get-user-env": "5L", "gid": "0", "gpu-bind": "none", "gpu-freq": "low"},
    **{"gres": "gpu:1", "gres-flags": "enforce-binding", "hint": "nomultithread", "input": "/dev/null"},
    **{"kill-command": "TERM", "mail-type": "END", "mail-user": "root", "mem": "100", "mem-bind": "local"},
    **{"mem-per-cpu": "50", "mem-per-gpu": "100", "mpi": "pmix", "nodefile": "nodes", "nodelist": "worker-0"},
    **{
        "output": "/dev/null",
        "partition": "main",
        "power": "level",
        "profile": "task",
        "prolog": "/bin/true",
    },
    **{"propagate": "ALL", "pty": "0", "qos": "normal", "send-libs": "yes", "signal": "INT@10"},
    **{"slurmd-debug": "debug5", "switches": "1@00:10", "task-epilog": "/bin/true"},
    **{"task-prolog": "/bin/true", "tres-bind": "gres/gpu:closest", "tres-per-task": "cpu=1", "uid": "0"},
    **{"acctg-freq": "task=1"},
}
MORE = {
    "sbatch": ["export=ALL", "export=NIL", "export=FOO=1", "export=FOO,HOME=/nowhere", "get-user-env=1"],
    "srun": ["export=NONE", "export=FOO=1", "mpi=none", "mpi=list", "exclusive=mcs", "multi-prog"],
    "salloc": ["get-user-env=1", "exclusive=mcs"],
}


def options(program: str) -> list[str]:
    text = subprocess.run([program, "--help"], capture_output=True, text=True, check=False).stdout
    found = set(MORE[program])
    for name, value in OPTION.findall(text):
        if name in SKIPPED:
            continue
        if value != "=":
            found.add(name)
        if value or name in VALUES:
            found.add(f"{name}={VALUES.get(name, '1')}")
    return sorted(found)


def command(program: str, option: str) -> list[str]:
    words = [program, "--time=1", "--mem=50", f"--{option}"]
    if program == "sbatch":
        return [*words, "--wrap=true"]
    return [*words, "--immediate=5", *(["-n1"] if program == "srun" else []), "/bin/true"]


def run(program: str, option: str) -> tuple[int, str]:
    words = ["timeout", "--signal=KILL", "20", *command(program, option)]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    said = (done.stdout + done.stderr).decode(errors="replace").split("\n")
    return done.returncode, next((line for line in reversed(said) if line.strip()), "")


def jobs() -> str:
    return subprocess.run(
        ["squeue", "--me", "--noheader", "--format=%i %T"], capture_output=True, text=True
    ).stdout


def wait_until_nothing_changes(seconds: float) -> None:
    """Every job that can run has run."""
    known, since, begin = jobs(), time.monotonic(), time.monotonic()
    while time.monotonic() < min(since + 6, begin + seconds):
        time.sleep(0.5)
        if (now := jobs()) != known or "RUNNING" in now or "COMPLETING" in now:
            known, since = now, time.monotonic()


def main() -> None:
    os.chdir(os.path.expanduser("~"))
    with open("variables", "wb") as file:
        file.write(b"FOO=from a file\0")
    with open("nodes", "w") as file:
        file.write("worker-0\n")
    said: dict[str, dict[str, tuple[int, str]]] = {}
    for program in sys.argv[1:]:
        tried = options(program)
        with ThreadPoolExecutor(6) as threads:
            answers = threads.map(lambda each, of=program: run(of, each), tried)
            said[program] = dict(zip(tried, answers, strict=True))
    wait_until_nothing_changes(90)
    subprocess.run(["scancel", "--me"], check=False)
    sys.stdout.write(json.dumps(said) + "\n")


main()
