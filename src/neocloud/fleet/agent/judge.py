"""From what probes read to verdicts: each number is compared with the limit of the fault policy.

One verdict for each check of the host, whose sample names the devices: a device that passes must not clear
the fault of another.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from neocloud.fleet.agent.checks import CHECKS, HOUR, Check, How
from neocloud.fleet.agent.history import History
from neocloud.fleet.agent.probe_result import Reading, Unreadable
from neocloud.fleet.nodes.events import CheckScope, Status
from neocloud.fleet.policy.actions import Action
from neocloud.fleet.policy.policy import CodeKind, Limit, Policy, Response, Rule, Severity
from neocloud.fleet.policy.policy import FaultScope as FaultScope

MOST_NAMED = 6
"""Devices in a sample."""
LOCAL_STORAGE = frozenset({"mount_missing", "mount_read_only", "mount_silent_s", "nfs_not_responding"})
"""Checks that may show a fault of the storage, and not of the node, where many nodes fail them."""


@dataclass(frozen=True)
class CheckAnswer:
    """The answer of one check, before it has a host and a time."""

    check: str
    status: Status
    sample: str
    threshold: str
    source: str
    version: str
    action: Action
    scope: CheckScope = CheckScope.NODE
    is_fatal: bool = False
    about: str = ""
    """The subject of the answer beyond its status: other devices make it another answer."""
    devices: str = ""
    """The devices that are not as they should be, with commas."""


@dataclass(frozen=True)
class NotJudged:
    check: str
    why: str


@dataclass(frozen=True)
class _Judged:
    """One device."""

    reading: Reading
    text: str
    status: Status | None
    """None where there is nothing to judge by yet."""
    why: str = ""
    response: Response | None = None


class Judge:
    """Judges readings by a policy and by what was read before."""

    def __init__(self, policy: Policy, history: History) -> None:
        self._policy, self._history = policy, history

    def answers(
        self, readings: Sequence[Reading], unreadable: Sequence[Unreadable], now: float
    ) -> tuple[list[CheckAnswer], list[NotJudged]]:
        """Return an answer for each check that was read, or why there is none. `now` is since the boot."""
        answers, left_out = list[CheckAnswer](), list[NotJudged]()
        names = dict.fromkeys(each.check for each in (*readings, *unreadable))
        for name in names:
            check = CHECKS[name]
            judged = [self._judge(check, each, now) for each in readings if each.check == name]
            self._forget(check, readings)
            found = self._answer(check, judged, [each for each in unreadable if each.check == name])
            (answers if isinstance(found, CheckAnswer) else left_out).append(found)  # pyright: ignore[reportArgumentType]
        return answers, left_out

    def _judge(self, check: Check, reading: Reading, now: float) -> _Judged:
        gpu = self._policy.type_of(reading.gpu) if reading.gpu else ""
        response = self._policy.response_to(CodeKind.COUNTER, check.name, gpu=gpu)
        limit = limit_of(response)
        if limit is None:
            return _Judged(reading, "", None, f"The policy has no limit for {reading.gpu or check.name}")
        key = f"{check.name}\t{reading.device}"
        if check.how is How.LASTING:
            return self._lasting(check, limit, response, reading, key, now)
        if check.how is How.VALUE:
            status = Status.FAIL if limit.is_broken(reading.value) else Status.PASS
            return _Judged(reading, _with_unit(reading.value, check.unit), status, "", response)
        return self._growing(check, limit, response, reading, key, now)

    def _lasting(
        self, check: Check, limit: Limit, response: Response, reading: Reading, key: str, now: float
    ) -> _Judged:
        if not reading.value:
            return _Judged(reading, "no", Status.PASS, "", response)
        seconds = self._history.lasting(key, now)
        if limit.is_broken(seconds):
            status = Status.FAIL
        else:
            status = Status.UNKNOWN if check.is_doubt else Status.PASS
        return _Judged(reading, f"for at least {seconds:.0f} s", status, "", response)

    def _growing(
        self, check: Check, limit: Limit, response: Response, reading: Reading, key: str, now: float
    ) -> _Judged:
        window = check.window_s or limit.per_s or HOUR
        value = reading.value
        if check.how is How.SHARE:
            samples = self._history.counters.get(key)
            value = (samples[-1][1] if samples else 0.0) + bool(reading.value)
        growth = self._history.growth(key, value, now, window)
        text = f"+{growth.by:g} in {growth.seconds:.0f} s"
        number = growth.by if limit.per_s is None else growth.by * limit.per_s / max(growth.seconds, window)
        if limit.is_broken(number):
            return _Judged(reading, text, Status.FAIL, "", response)
        if not growth.seconds:
            return _Judged(reading, text, None, "It was read once, so it has not grown yet")
        if limit.per_s is not None and growth.seconds < window:
            why = f"It was watched for {growth.seconds:.0f} s, and its limit is over {window:.0f} s"
            return _Judged(reading, text, None, why)
        return _Judged(reading, text, Status.PASS, "", response)

    def _forget(self, check: Check, readings: Iterable[Reading]) -> None:
        if check.how is How.LASTING:
            holding = {
                f"{check.name}\t{each.device}" for each in readings if each.check == check.name and each.value
            }
            self._history.forget(f"{check.name}\t", holding)

    def _answer(
        self, check: Check, judged: Sequence[_Judged], unreadable: Sequence[Unreadable]
    ) -> CheckAnswer | NotJudged:
        broken = [each for each in judged if each.status is Status.FAIL]
        if broken:
            return _answer_of(check, Status.FAIL, broken, _sample(broken))
        doubtful = [each for each in judged if each.status is Status.UNKNOWN]
        if unreadable or doubtful:
            texts = [f"{_named(each.device)}{each.why}" for each in unreadable[:MOST_NAMED]]
            sample = "; ".join([*texts, *([_sample(doubtful)] if doubtful else [])])
            about = ",".join(each.device for each in unreadable)
            response = self._policy.response_to(CodeKind.COUNTER, check.name)
            return _answer(check, Status.UNKNOWN, sample, response, about, Action.TRIAGE)
        open_ = [each for each in judged if each.status is None]
        if open_:
            return NotJudged(check.name, open_[0].why)
        return _answer_of(check, Status.PASS, judged, _summary(check, judged))


def _answer_of(check: Check, status: Status, judged: Sequence[_Judged], sample: str) -> CheckAnswer:
    responses = [each.response for each in judged if each.response]
    worst = max(responses, key=lambda each: (each.severity.rank, each.action.rung))
    about = ",".join(each.reading.device for each in judged) if status is not Status.PASS else ""
    return _answer(check, status, sample, worst, about)


def _answer(
    check: Check, status: Status, sample: str, response: Response, about: str, action: Action | None = None
) -> CheckAnswer:
    rule = _rule(response)
    limit = limit_of(response)
    threshold = f"{limit.text} {check.unit}".strip() if limit else ""
    source, version = source_of(rule, limit) if rule and limit else ("", "")
    return CheckAnswer(
        check.name, status, sample, threshold, source, version, action or response.action,
        scope_of(check.name, rule.scope if rule else FaultScope.HOST),
        response.severity is Severity.FATAL and status is Status.FAIL, about, about,
    )  # fmt: skip


def scope_of(name: str, scope: FaultScope) -> CheckScope:
    """Return the scope of a check about a fault, before topology is looked at."""
    if scope in (FaultScope.LINK, FaultScope.NETWORK):
        return CheckScope.LINK
    return CheckScope.STORAGE if name in LOCAL_STORAGE else CheckScope.NODE


def _rule(response: Response) -> Rule | None:
    """Return the row that counts: the gravest."""
    return max(response.rules, key=lambda rule: (rule.severity.rank, rule.action.rung), default=None)


def limit_of(response: Response) -> Limit | None:
    rule = _rule(response)
    return rule.limit if rule else None


def source_of(rule: Rule, limit: Limit) -> tuple[str, str]:
    """Return who gave the limit, and the version: ourselves where no source has the same."""
    for each in rule.statements:
        if each.word.text == limit.text:
            return each.source.name, each.source.version
    return "neocloud", "with the fault policy"


def _sample(judged: Sequence[_Judged]) -> str:
    named = "; ".join(
        f"{_named(each.reading.device)}{each.text}{_note(each.reading)}" for each in judged[:MOST_NAMED]
    )
    more = len(judged) - MOST_NAMED
    return f"{named}; and {more} more" if more > 0 else named


def _summary(check: Check, judged: Sequence[_Judged]) -> str:
    """Summarise what passed: the one device, or the number of devices with the one nearest to its limit."""
    if len(judged) == 1:
        return f"{judged[0].text}{_note(judged[0].reading)}"
    limit = next((found for each in judged if each.response and (found := limit_of(each.response))), None)
    is_above = limit is None or limit.is_above
    worst = max(judged, key=lambda each: each.reading.value if is_above else -each.reading.value)
    if check.how is How.VALUE and any(each.reading.value != judged[0].reading.value for each in judged):
        return f"{len(judged)} devices, at worst {_sample([worst])}"
    return f"{len(judged)} devices, {worst.text}{_note(worst.reading)}"


def _named(device: str) -> str:
    return f"{device}: " if device else ""


def _note(reading: Reading) -> str:
    return f" ({reading.note})" if reading.note else ""


def _with_unit(value: float, unit: str) -> str:
    text = f"{value:.4g}" if value != int(value) else f"{int(value)}"
    return f"{text} {unit}".strip()
