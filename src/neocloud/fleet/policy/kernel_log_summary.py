"""Faults of a kernel log with what is done about each: lines become faults, and limits are applied. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from neocloud.fleet.policy.actions import Action
from neocloud.fleet.policy.kernel_log import KernelFinding, KernelMessage, findings
from neocloud.fleet.policy.nvlink import meanings, registers_of
from neocloud.fleet.policy.policy import (
    CodeKind,
    Escalation,
    Per,
    Policy,
    Repetition,
    Response,
    Rule,
    Severity,
    Version,
)

MOST_FAULTS = 10_000
"""Different faults that are told apart; lines of more are counted alone."""
MOST_MEANINGS = 32
"""Different meanings of registers that are kept of one fault."""
MOST_TIMES = 1000
"""Times that are kept of one fault: the latest."""


@dataclass
class Fault:
    """One fault of one device, with all its lines."""

    kind: CodeKind
    code: str
    device: str
    detail: str
    part: str
    response: Response
    severity: Severity
    action: Action
    text: str
    """Its first line."""
    lines: int = 0
    times: list[float] = field(default_factory=list[float])
    """When it came; lines of a burst are one. Lines without a time are in `lines` alone."""
    last_line_s: float | None = None
    open_since_s: float | None = None
    """Time since when a fault lasts that ends, such as a server that does not answer."""
    registers: list[str] = field(default_factory=list[str])
    """Meaning of the registers in its lines, of NVLink errors."""
    because: list[str] = field(default_factory=list[str])
    """Why severity or action are graver than those of the row."""

    def add(self, finding: KernelFinding, burst_s: float) -> None:
        now, before = finding.time_s, self.last_line_s
        if finding.is_end:
            self.open_since_s = None
            return
        self.lines += 1
        if now is None:
            return
        if before is None or not 0 <= now - before <= burst_s:
            self.times = [*self.times[1 - MOST_TIMES :], now]
        if self.open_since_s is None:
            self.open_since_s = now
        self.last_line_s = now

    def decode(self, finding: KernelFinding, driver: Version | None) -> None:
        """Take what registers in the line say. It may be graver than the word in the line."""
        if finding.kind is not CodeKind.XID or (found := registers_of(finding.text)) is None:
            return
        link, values = found
        for meaning in meanings(int(finding.code) if finding.code.isdigit() else 0, values, driver):
            text = f"link {link}: {meaning.text}; {meaning.says}"
            if text not in self.registers and len(self.registers) < MOST_MEANINGS:
                self.registers.append(text)
            if meaning.action is not None:
                self.raise_to(meaning.severity, meaning.action, f"the registers of {text}")

    def raise_to(self, severity: Severity | None, action: Action, because: str) -> None:
        """Take a graver step, with the reason. A milder one changes nothing."""
        graver = severity is not None and severity.rank > self.severity.rank
        if graver or action.rung > self.action.rung:
            self.because.append(because)
        self.severity = severity if severity is not None and graver else self.severity
        self.action = action if action.rung > self.action.rung else self.action


@dataclass(frozen=True)
class Summary:
    """Summary of a node's kernel log."""

    faults: Sequence[Fault]
    """The gravest first."""
    records: int
    """Lines that are the kernel's own."""
    not_told_apart: int = 0
    """Lines of faults beyond MOST_FAULTS."""


def summary_of(
    records: Iterable[KernelMessage], policy: Policy, *, gpu: str = "", driver: Version | None = None
) -> Summary:
    """Return the faults in the records, with the limits of the policy applied."""
    counted = _Counted(records)
    faults: dict[tuple[str, ...], Fault] = {}
    not_told_apart = 0
    for finding in findings(counted):
        key = (finding.kind, finding.code, finding.device, finding.detail, finding.part)
        fault = faults.get(key)
        if fault is None:
            if finding.is_end:
                continue
            if len(faults) >= MOST_FAULTS:
                not_told_apart += 1
                continue
            response = policy.response_to(
                finding.kind, finding.code, gpu=gpu, driver=driver, detail=finding.detail
            )
            fault = faults[key] = Fault(
                finding.kind, finding.code, finding.device, finding.detail, finding.part,
                response, response.severity, response.action, finding.text,
            )  # fmt: skip
        fault.add(finding, policy.burst_s)
        fault.decode(finding, driver)
    found = list(faults.values())
    _apply_limits(found, policy, counted.last_s)
    found.sort(key=lambda fault: (-fault.severity.rank, -fault.action.rung))
    return Summary(found, counted.count, not_told_apart)


@dataclass
class _Counted:
    """Counts records as they pass, and remembers the time of the last."""

    records: Iterable[KernelMessage]
    count: int = 0
    last_s: float | None = None

    def __iter__(self):
        for record in self.records:
            self.count += 1
            self.last_s = record.time_s if record.time_s is not None else self.last_s
            yield record


def _apply_limits(faults: Sequence[Fault], policy: Policy, end_s: float | None) -> None:
    by_row: dict[int, list[Fault]] = {}
    for fault in faults:
        for rule in fault.response.rules:
            if rule.escalations:
                by_row.setdefault(rule.line, []).append(fault)
    rules = {rule.line: rule for rule in policy.rules}
    for line, of_row in by_row.items():
        for each in rules[line].escalations:
            _escalate(of_row, rules[line], each, end_s)
    for each in policy.repetition:
        if each.kind in list(CodeKind):
            _repeat([fault for fault in faults if fault.kind == each.kind], each)


def _escalate(faults: Sequence[Fault], rule: Rule, limit: Escalation, end_s: float | None) -> None:
    if limit.lasting_s is not None:
        for fault in faults:
            since = fault.open_since_s
            if since is not None and end_s is not None and end_s - since >= limit.lasting_s:
                reason = f"it lasts for {end_s - since:.0f} s (limit {limit.lasting_s:g} s)"
                fault.raise_to(limit.severity, limit.action, reason)
        return
    for group in _groups(faults, limit.per, by_code=True).values():
        if _most_within(group, limit.within_s) >= limit.count:
            for fault in group:
                fault.raise_to(limit.severity, limit.action, _reason(limit, rule.name))


def _repeat(faults: Sequence[Fault], rule: Repetition) -> None:
    wanted = [fault for fault in faults if rule.severity is None or fault.severity is rule.severity]
    for group in _groups(wanted, rule.per, by_code=False).values():
        if _most_within(group, rule.within_s) >= rule.count:
            for fault in group:
                fault.raise_to(None, rule.action, _reason(rule, rule.name))


def _reason(limit: Escalation | Repetition, name: str) -> str:
    within = "" if limit.within_s is None else f" in {limit.within_s / 3600:g} h"
    return f"{limit.count} times{within} on one {limit.per.replace('_', ' ')}: {name} ({limit.source.name})"


def _groups(faults: Iterable[Fault], per: Per, *, by_code: bool) -> Mapping[tuple[str, ...], Sequence[Fault]]:
    """Return the faults by what a limit counts them of; those of an unknown device or part are left out."""
    groups: dict[tuple[str, ...], list[Fault]] = {}
    for fault in faults:
        place = {Per.NODE: (), Per.GPU: (fault.device,), Per.GPU_PART: (fault.device, fault.part)}[per]
        if all(place):
            groups.setdefault((fault.code if by_code else "", *place), []).append(fault)
    return groups


def _most_within(faults: Sequence[Fault], within_s: float | None) -> int:
    """Return the largest number of faults within any stretch of that length."""
    times = sorted(time for fault in faults for time in fault.times)
    if within_s is None:
        return len(times)
    most = first = 0
    for last, time in enumerate(times):
        while time - times[first] > within_s:
            first += 1
        most = max(most, last - first + 1)
    return most
