"""A program whose probes misbehave, for the tests of processes of probes: they fork, which pytest should not.

It prints what became of each, as one JSON object for each round.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from neocloud.fleet.agent import child, host
from neocloud.fleet.agent.child import Children, Job
from neocloud.fleet.agent.expected import Expected
from neocloud.fleet.agent.host import HostChecks, Memory
from neocloud.fleet.agent.host_files import FreeSpace, Tree
from neocloud.fleet.agent.judge import CheckAnswer
from neocloud.fleet.agent.plan import PROBES
from neocloud.fleet.agent.probe_result import ProbeResult
from neocloud.fleet.policy.policy_file import default_policy

DEADLINE_S = 2.0


def works() -> ProbeResult:
    found = ProbeResult()
    found.read("gpu_lost", "0000:18:00.0", 0, "fine")
    return found


def hangs() -> ProbeResult:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    while True:
        signal.pause()


def crashes() -> ProbeResult:
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


def raises() -> ProbeResult:
    raise OSError("the driver says no")


def talks_without_end() -> ProbeResult:
    found = ProbeResult()
    found.read("gpu_lost", "x" * (child.MOST_BYTES + 1), 0)
    return found


def starts_a_child() -> ProbeResult:
    """And hangs with it: the whole group has to end."""
    pid = os.fork()
    if pid:
        Path(sys.argv[2]).write_text(str(pid))
    return hangs()


def outcomes(children: Children, *jobs: Callable[[], ProbeResult]) -> dict[str, object]:
    done = children.run([Job(each.__name__, each, DEADLINE_S) for each in jobs])
    return {each.name: {"why": each.why, "lives": each.lives, "found": bool(each.found)} for each in done}


def say(content: object) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


def each() -> None:
    started = time.monotonic()
    found = outcomes(Children(), works, hangs, crashes, raises, talks_without_end)
    say({**found, "seconds": time.monotonic() - started})


def group() -> None:
    say(outcomes(Children(), starts_a_child))


def stuck() -> None:
    """Simulate a kernel that does not deliver SIGKILL, as to a task that is blocked in it."""
    children, kill = Children(), child._kill
    child._kill, child.KILL_SECONDS = lambda pid: None, 0.1
    say([outcomes(children, hangs, works), dict(children.stuck)])
    say([outcomes(children, hangs, works), dict(children.stuck)])
    pid = children.stuck["hangs"]
    kill(pid)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    child._kill = kill
    say([outcomes(children, hangs, works), dict(children.stuck)])


class SilentMount(Tree):
    def room(self, mount_point: str) -> FreeSpace:
        if mount_point == "/jail":
            hangs()
        return super().room(mount_point)


def mount() -> None:
    host.DEADLINE_S = DEADLINE_S
    clock = [1000.0]
    probes = [probe for probe in PROBES if probe.name == "mounts"]
    checks = HostChecks(
        SilentMount(Path(sys.argv[2])),
        default_policy(),
        Expected(mounts=("/jail",)),
        Memory("boot"),
        probes=probes,
        now=lambda: clock[0],
    )
    for seconds in (0, 30, 31):
        clock[0] += seconds
        checks.run()
        said = {name: each.answer for name, each in checks.said.items()}
        named = {name: said[name] for name in ("mount_silent_s", "disk_used")}
        say(
            {
                name: [each.status, each.sample]
                for name, each in named.items()
                if isinstance(each, CheckAnswer)
            }
        )


if __name__ == "__main__":
    {"each": each, "group": group, "stuck": stuck, "mount": mount}[sys.argv[1]]()
