"""The scorecard: each criterion of ClusterMAX with a verdict, its evidence and how old that is.

A verdict comes from what the cloud's own records show, from reports of ClusterMAX's auditor, and from what
people attest. The worst that was found counts. A criterion without evidence is `not_run`, never a pass.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from neocloud.cli.scorecard.criteria import CRITERIA, Criterion, Tier

MOST_CHARACTERS = 4 << 20
LONGEST_TEXT = 300
_CHECK = re.compile(r"^(PASS|FAIL|WARNING|SKIPPED) +(\S.{0,200}?)  \[([\w.-]{1,100})\]$")
_TARGET = re.compile(r"^  Target: (.{1,60})$", re.MULTILINE)
_SUMMARY = re.compile(r"^(\d+) failed, (\d+) warnings?, (\d+) passed, (\d+) skipped$", re.MULTILINE)


class Score(StrEnum):
    PASS = "pass"
    PARTIAL = "partial"
    FAIL = "fail"
    ATTEST = "attest"
    """A person has to attest it, and none has."""
    NOT_RUN = "not_run"


_WORST_FIRST = (Score.FAIL, Score.PARTIAL, Score.PASS)
_OF_AUDITOR = {"PASS": Score.PASS, "WARNING": Score.PARTIAL, "FAIL": Score.FAIL, "SKIPPED": Score.NOT_RUN}
_HARNESSES = {
    "Local machine": "local",
    "Local virtual machine": "vm",
    "Local container": "container",
    "Standalone bare-metal host": "standalone",
    "Slurm cluster": "slurm",
    "Kubernetes cluster": "k8s",
}
"""The auditor's option for what it prints as its target."""


@dataclass(frozen=True)
class Evidence:
    source: str
    """"cloud", "auditor" or "document"."""
    score: Score
    text: str
    at: datetime | None = None
    check: str = ""
    """The auditor's key."""
    harness: str = ""
    """The system that the auditor looked at, by its option, e.g. "vm"; "" where its report does not say."""


@dataclass(frozen=True)
class Row:
    criterion: Criterion
    score: Score
    evidence: tuple[Evidence, ...]

    def decisive(self) -> Evidence | None:
        """Return the evidence that the score comes from, the first of several."""
        return next((each for each in self.evidence if each.score is self.score), None)


class ReportError(ValueError):
    """The text is not a report of the auditor; says why."""


def scorecard(evidence: Mapping[str, Sequence[Evidence]]) -> list[Row]:
    """Return a row for each criterion, from evidence by its id."""
    return [_row(criterion, tuple(evidence.get(criterion.id, ()))) for criterion in CRITERIA]


def _row(criterion: Criterion, evidence: tuple[Evidence, ...]) -> Row:
    found = {each.score for each in evidence}
    unknown = Score.ATTEST if criterion.needs_document else Score.NOT_RUN
    return Row(criterion, next((score for score in _WORST_FIRST if score in found), unknown), evidence)


@dataclass(frozen=True)
class Rating:
    reached: Tier | None
    """The highest tier of which, and of those below, every criterion passes; None for none."""
    next: Tier | None
    missing: tuple[Row, ...]
    """Rows that keep it from the next tier."""
    is_underperforming: bool
    """Something fails that is asked of every cloud: no other result makes up for it."""


def rating(rows: Sequence[Row]) -> Rating:
    """Return how far these rows go by our reading of the tiers. A criterion met in part is not met."""
    reached: Tier | None = None
    is_underperforming = any(row.criterion.tier is Tier.ALL and row.score is Score.FAIL for row in rows)
    for tier in Tier:
        missing = tuple(row for row in rows if row.criterion.tier is tier and row.score is not Score.PASS)
        if missing:
            return Rating(reached, tier, missing, is_underperforming)
        reached = tier
    return Rating(reached, None, (), is_underperforming)


def read_report(text: str, at: datetime | None) -> list[Evidence]:
    """Return what a report of `cmax audit -vvv` says, one for each check. Raises ReportError."""
    if len(text) > MOST_CHARACTERS:
        raise ReportError(f"it has more than {MOST_CHARACTERS:,} characters")
    summary = _SUMMARY.search(text)
    if summary is None:
        raise ReportError(
            "it has no line such as '3 failed, 2 warnings, 9 passed, 4 skipped': the audit is incomplete"
        )
    target = _TARGET.search(text, 0, summary.start())
    harness = _HARNESSES.get(target[1], "") if target else ""
    lines = text.splitlines()
    found: dict[str, Evidence] = {}
    for number, line in enumerate(lines):
        if match := _CHECK.match(line):
            said = lines[number + 1].strip()[:LONGEST_TEXT] if number + 1 < len(lines) else ""
            check = match[3]
            score, words = _OF_AUDITOR[match[1]], f"{match[2]}: {said}"
            found[check] = Evidence("auditor", score, words, at, check, harness)
    if len(found) != sum(int(each) for each in summary.groups()):
        raise ReportError(
            f"it counts {sum(int(each) for each in summary.groups())} checks and shows {len(found)}:"
            " print it with -vvv"
        )
    return list(found.values())


def by_criterion(checks: Sequence[Evidence]) -> dict[str, list[Evidence]]:
    """Return the auditor's checks, of one report or of several, by the ids of their criteria."""
    found = {
        criterion.id: [each for key in criterion.checks for each in checks if each.check == key]
        for criterion in CRITERIA
    }
    return {identifier: several for identifier, several in found.items() if several}
