"""From what a check measured on one node to a verdict, by the limits of the catalogue. Pure.

Without a limit there is no verdict: the value waits for a cohort to be compared with (`cohort`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from neocloud.fleet.active.catalogue import ActiveCheck, Better, Limit, version
from neocloud.fleet.agent.document import LONGEST_TEXT, NotRun
from neocloud.fleet.nodes.events import Status, Verdict

SIGNS = {Better.HIGHER: ">=", Better.LOWER: "<=", Better.EQUAL: "=="}
BUSY = "busy: "
"""How a reason begins of a check that got too little of a processor: it says nothing of the node, and is
repeated."""
MOST_SHOWN = 8
"""Devices in one sample; the worst come first."""


@dataclass(frozen=True)
class CheckMeasurement:
    check: str
    device: str
    value: float
    unit: str
    note: str = ""

    @property
    def text(self) -> str:
        number = f"{self.value:,.0f}" if 1000 <= abs(self.value) < 1e15 else f"{self.value:.4g}"
        shown = f"{number} {self.unit}".strip()
        note = f" ({self.note})" if self.note else ""
        return f"{self.device}: {shown}{note}" if self.device else f"{shown}{note}"


@dataclass(frozen=True)
class CheckedBoot:
    """The node and boot that a verdict is about, and when its check began."""

    host: str
    boot: str
    at: float


def is_busy(left_out: NotRun) -> bool:
    return left_out.why.startswith(BUSY)


def judge(
    check: ActiveCheck, measured: Sequence[CheckMeasurement], place: CheckedBoot, run: str
) -> Verdict | NotRun:
    """Return one verdict on all devices of a node. `run` makes its id unique."""
    if not measured:
        return NotRun(check.name, "It measured nothing")
    limits = {each.device: check.limit(f"{each.device} {each.note}") for each in measured}
    unusable = [each for each in measured if not math.isfinite(each.value) or not _has_unit(check, each)]
    if unusable:
        sample = f"{unusable[0].text}: not a number in {check.unit}"
        return verdict(check, Status.UNKNOWN, sample, "", "catalogue", place, run)
    if not any(limits.values()):
        shown = sample_of(check, measured)
        return NotRun(check.name, plain(f"There is no limit for it; measured {shown}"))
    failed = [each for each in measured if _is_beyond(check, each, limits[each.device])]
    limit = limits[failed[0].device] if failed else next(each for each in limits.values() if each)
    assert limit is not None
    status = Status.FAIL if failed else Status.PASS
    shown = sample_of(check, failed or measured)
    return verdict(check, status, shown, threshold_of(check, limit), limit.source, place, run)


def verdict(
    check: ActiveCheck, status: Status, sample: str, threshold: str, source: str, place: CheckedBoot, run: str
) -> Verdict:
    return Verdict(
        *(place.at, place.host, f"{check.name}-{run}", check.name, status, place.boot),
        *(plain(sample), plain(threshold), f"active check, limit of {source}", version()),
        *(check.action, check.scope),
    )


def threshold_of(check: ActiveCheck, limit: Limit) -> str:
    return f"{SIGNS[check.better]} {limit.value:g} {check.unit}".strip()


def sample_of(check: ActiveCheck, measured: Sequence[CheckMeasurement]) -> str:
    ordered = sorted(measured, key=lambda each: each.value, reverse=check.better is not Better.HIGHER)
    more = f"; {len(ordered) - MOST_SHOWN} more" if len(ordered) > MOST_SHOWN else ""
    return plain("; ".join(each.text for each in ordered[:MOST_SHOWN]) + more)


def plain(text: str, most: int = LONGEST_TEXT) -> str:
    """Return text without what cannot be printed, and bounded."""
    shown = "".join(each if each.isprintable() else "\ufffd" for each in text[:most])
    return shown.encode(errors="replace").decode()[:most]


def _is_beyond(check: ActiveCheck, measured: CheckMeasurement, limit: Limit | None) -> bool:
    return limit is not None and not check.is_within(measured.value, limit)


def _has_unit(check: ActiveCheck, measured: CheckMeasurement) -> bool:
    return not check.unit or measured.unit == check.unit
