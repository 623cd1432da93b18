"""Faults in the kernel log become a check each: of the node, of a job, or over. HEALTH-01."""

import pytest

from neocloud.fleet.agent.judge import CheckAnswer
from neocloud.fleet.agent.kernel_faults import MOST_CHECKS, MOST_LINES, KernelFaults, Line
from neocloud.fleet.agent.probe_result import KernelLines
from neocloud.fleet.nodes.events import CheckScope, Status
from neocloud.fleet.policy.actions import Action
from neocloud.fleet.policy.policy_file import default_policy

GPU = "NVRM: Xid (PCI:0000:18:00): "
SILENT = "nfs: server 10.0.0.5 not responding, still trying"


def answers(*messages: str, now_s: float = 1000.0, gpu: str = "h100") -> dict[str, CheckAnswer]:
    lines: list[Line] = [(100.0, number, message) for number, message in enumerate(messages)]
    found = KernelLines(len(lines), 0, len(lines), now_s, lines)
    return {each.check: each for each in KernelFaults().take(found, default_policy(), gpu)}


FAULTS = {
    "a GPU off the bus": (f"{GPU}79, GPU has fallen off", "xid.79", Status.FAIL, Action.REBOOT, True),
    "a row that was remapped": (f"{GPU}63, Row Remapper", "xid.63", Status.PASS, Action.NONE, False),
    "a fault of a program": (
        f"{GPU}13, Graphics Exception", "xid.13", Status.PASS, Action.RESTART_APP, False,
    ),
    "an unknown code": (f"{GPU}9999, new", "xid.9999", Status.UNKNOWN, Action.TRIAGE, False),
    "a program that took all memory": (
        "Memory cgroup out of memory: Killed process 12 (python)",
        "kernel.oom_kill", Status.PASS, Action.RESTART_APP, False,
    ),
    "a processor that hangs": (
        "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:12]",
        "kernel.soft_lockup", Status.FAIL, Action.REBOOT, False,
    ),
    "a server that is silent": (SILENT, "kernel.nfs_not_responding", Status.FAIL, Action.TRIAGE, True),
}  # fmt: skip


@pytest.mark.parametrize(("message", "check", "status", "action", "is_fatal"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_a_check(message: str, check: str, status: Status, action: Action, is_fatal: bool) -> None:
    found = answers(message)
    assert found.keys() == {"kernel_log", check}
    answer = found[check]
    assert (answer.status, answer.action, answer.is_fatal) == (status, action, is_fatal)
    assert answer.source and answer.version and message[:20] in answer.sample


def test_a_server_that_answers_again_is_no_fault() -> None:
    found = answers(SILENT, "nfs: server 10.0.0.5 OK")["kernel.nfs_not_responding"]
    assert found.status is Status.PASS
    assert answers(SILENT)["kernel.nfs_not_responding"].scope is CheckScope.STORAGE


def test_a_fault_of_a_program_that_comes_back_is_the_nodes() -> None:
    """XID 31 twice on one GPU within a day, in two bursts."""
    lines: list[Line] = [(at, number, f"{GPU}31, MMU Fault") for number, at in enumerate((100.0, 900.0))]
    found = KernelFaults().take(KernelLines(2, 0, 2, 1000.0, lines), default_policy(), "h100")
    fault = next(each for each in found if each.check == "xid.31")
    assert fault.status is Status.FAIL and fault.action.rung > Action.RESTART_APP.rung


def test_a_log_that_is_flooded_is_bounded() -> None:
    """Root in a container cannot write here, but a driver that fails can."""
    lines: list[Line] = [(float(each), each, f"{GPU}{each}, x") for each in range(200, 200 + 3 * MOST_LINES)]
    faults = KernelFaults()
    found = faults.take(KernelLines(9999, 0, len(lines), 1e5, lines), default_policy(), "")
    assert len(faults.lines) == len(faults.unreported) == MOST_LINES and len(found) == MOST_CHECKS + 1


def test_words_for_a_fault_in_a_form_that_is_not_known_are_no_good_news() -> None:
    """The driver of a later release may say it otherwise: it is unknown. A process's name says nothing."""
    strange = "nvidia 0000:18:00.0: Xid 79 since 3 s"
    said = answers(strange, "Xid[42]: segfault at 0 ip 0 sp 0 error 4 in a[1+1]")
    (found,) = (each for check, each in said.items() if check.startswith("xid."))
    assert (found.check, found.status) == ("xid.unreadable", Status.UNKNOWN)
    assert strange in found.sample
