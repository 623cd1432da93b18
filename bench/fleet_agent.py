"""Measure the cost of the node agent: share of a core, memory, and writes to its spool.

    python bench/fleet_agent.py --seconds 300 [--interval 10] [--root DIR] [--program agent.pyz]

It runs the agent as `neo fleet agent` does, and reads what the kernel counted for it and its probes. Of a
tree in the shape of a node they read files of a disk and not of drivers: that is no measure of a real node.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--interval", type=float, default=10)
    parser.add_argument("--root", default="/")
    parser.add_argument("--program", help="the agent as one file; the installed package without it")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        agent_program = ["-I", given.program] if given.program else ["-I", "-m", "neocloud.fleet.agent"]
        command = [sys.executable, *agent_program, "watch", "--spool", folder]
        command += ["--interval", str(given.interval), "--root", given.root]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        agent = subprocess.Popen(command)
        started = _when_started(Path(folder), agent)
        time.sleep(given.seconds)  # the length of the measurement
        used, memory = _cpu_seconds(agent.pid) - started, _memory_mib(agent.pid)
        agent.send_signal(signal.SIGTERM)
        agent.wait(30)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        written = (Path(folder) / "records.jsonl").stat().st_size
    result = {
        "seconds": given.seconds,
        "interval_s": given.interval,
        "root": given.root,
        "percent_of_a_core": round(100 * used / given.seconds, 3),
        "cpu_seconds_with_start": round(_total(after) - _total(before), 2),
        "proportional_memory_mib": memory,
        "spool_bytes": written,
        "load_before": load,
        "processors": os.cpu_count(),
    }
    print(json.dumps(result, indent=2))


def _when_started(folder: Path, agent: subprocess.Popen[bytes]) -> float:
    """Wait for the first records, and return the processor time that the start took."""
    while not (folder / "state.json").exists():
        if agent.poll() is not None:
            sys.exit("the agent ended")
        time.sleep(0.05)
    return _cpu_seconds(agent.pid)


def _cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(each) for each in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def _memory_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(round(int(line.split()[1]) / 1024, 1) for line in lines if line.startswith("Pss:"))


def _total(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
