"""Faults of the kernel log since the boot, as answers. Their lines are kept over restarts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from neocloud.fleet.agent.judge import CheckAnswer, scope_of
from neocloud.fleet.agent.probe_result import KernelLines
from neocloud.fleet.nodes.events import Status
from neocloud.fleet.policy.actions import Action
from neocloud.fleet.policy.kernel_log import KernelMessage
from neocloud.fleet.policy.kernel_log_summary import Fault, summary_of
from neocloud.fleet.policy.policy import FaultScope, Policy, Severity

CHECK = "kernel_log"
MOST_LINES = 512
MOST_CHECKS = 64
Line = tuple[float | None, int, str]


@dataclass
class KernelFaults:
    """The next record to read, and the records so far that may report a fault."""

    next_sequence: int = 0
    lines: list[Line] = field(default_factory=list[Line])
    unreported: list[Line] = field(default_factory=list[Line])
    """Lines that no record of the spool has yet."""
    records: int = 0
    """Read since the agent started."""

    def take(self, found: KernelLines, policy: Policy, gpu: str) -> list[CheckAnswer]:
        """Add new lines, and return what the log says of the host."""
        known = {sequence for _, sequence, _ in self.lines}
        new = [each for each in found.lines if each[1] not in known]
        self.lines = [*self.lines, *new][-MOST_LINES:]
        self.unreported = [*self.unreported, *new][-MOST_LINES:]
        self.records += found.read
        self.next_sequence = max(self.next_sequence, found.next_sequence)
        records = [KernelMessage(message, time_s, sequence) for time_s, sequence, message in self.lines]
        if records:
            records.append(KernelMessage("", found.now_s, self.next_sequence))  # how long what is open lasts
        faults = summary_of(records, policy, gpu=gpu).faults
        return [_reading(found, self.records), *_answers(faults, policy)]

    def to_json(self) -> dict[str, object]:
        return {"next": self.next_sequence, "lines": self.lines}

    def new_json(self) -> dict[str, object]:
        """Return what `apply` adds to an earlier state."""
        return {"next": self.next_sequence, "lines": self.unreported}

    def apply(self, given: dict[str, Any]) -> None:
        """Raises ValueError, TypeError, KeyError for what `new_json` did not write."""
        new = KernelFaults.from_json(given)
        known = {sequence for _, sequence, _ in self.lines}
        self.lines = [*self.lines, *(each for each in new.lines if each[1] not in known)][-MOST_LINES:]
        self.next_sequence = max(self.next_sequence, new.next_sequence)

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> "KernelFaults":
        """Raises ValueError, TypeError, KeyError for what `to_json` did not write."""
        lines: list[Line] = [
            (None if at is None else float(at), int(sequence), str(message))
            for at, sequence, message in given["lines"][-MOST_LINES:]
        ]
        return cls(int(given["next"]), lines)


def _reading(found: KernelLines, records: int) -> CheckAnswer:
    """Return whether the log was read whole, as an answer: the content of lost records is not known."""
    status = Status.UNKNOWN if found.lost else Status.PASS
    sample = (
        f"{records:,} records read, {found.lost:,} lost just now"
        if found.lost
        else f"{records:,} records read"
    )
    return CheckAnswer(
        CHECK, status, sample, "over 0 lost", "neocloud", "with the fault policy", Action.TRIAGE
    )


def _answers(faults: Sequence[Fault], policy: Policy) -> list[CheckAnswer]:
    by_check = dict[str, list[Fault]]()
    for fault in faults:  # the gravest first
        by_check.setdefault(f"{fault.kind}.{fault.code}", []).append(fault)
    return [_answer(check, group, policy) for check, group in list(by_check.items())[:MOST_CHECKS]]


def _answer(check: str, faults: Sequence[Fault], policy: Policy) -> CheckAnswer:
    worst = faults[0]
    rule = max(worst.response.rules, key=lambda rule: rule.severity.rank, default=None)
    scope = rule.scope if rule else FaultScope.HOST
    source = rule.statements[0].source if rule and rule.statements else None
    threshold = f"{worst.severity}: {worst.action}"
    if worst.because:
        threshold += f" ({worst.because[0]})"
    status = _status(worst, scope)
    return CheckAnswer(
        check,
        status,
        "; ".join(_sample(fault) for fault in faults[:3]),
        threshold,
        source.name if source else "neocloud",
        source.version if source else f"policy of {policy.updated}",
        worst.action,
        scope_of(worst.code, scope),
        worst.severity is Severity.FATAL and status is Status.FAIL,
        ",".join(f"{fault.device}*{len(fault.times)}" for fault in faults),
        ",".join(dict.fromkeys(fault.device for fault in faults if fault.device)),
    )


def _status(fault: Fault, scope: FaultScope) -> Status:
    if fault.severity is Severity.UNKNOWN:
        return Status.UNKNOWN
    is_over = fault.open_since_s is None and fault.code == "nfs_not_responding"
    is_of_job = scope is FaultScope.APPLICATION and fault.action.rung <= Action.RESTART_APP.rung
    if fault.severity is Severity.INFO or is_of_job or is_over:
        return Status.PASS  # it is recorded; the node is healthy
    return Status.FAIL


def _sample(fault: Fault) -> str:
    where = f"{fault.device}: " if fault.device else ""
    times = f"{len(fault.times)} times, first " if len(fault.times) > 1 else ""
    return f"{where}{times}{fault.text[:160]}"
