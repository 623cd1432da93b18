"""Judge verdicts by independent tests. The table of tests is in judging.json.

A failing verdict is judged by what another check measured on the same start of the node, never by its own
check. A test without a clear result gives no judgement.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any

from neocloud.fleet.control.failing import Failing
from neocloud.fleet.nodes.events import Judged, Status, Verdict
from neocloud.fleet.nodes.node_state import NodeState
from neocloud.fleet.policy.limits import Limits

FILE = "judging.json"
BY_TEST = "test:"
BEFORE_S = 90.0
"""A measurement that is repeated each minute may have seen the same fault a little earlier."""
Answers = Mapping[tuple[str, str], Verdict]
"""The last answer of each check on each node."""


class MeansOfTest(StrEnum):
    MEASUREMENT = "measurement"
    """The cloud repeats it all the time."""
    ACTIVE = "active"
    """A check of the catalogue of active checks, which runs while the node is idle."""


@dataclass(frozen=True)
class IndependentTest:
    """An independent test of what other checks say."""

    of: tuple[str, ...]
    check: str
    kind: MeansOfTest
    within_s: float
    """How long after the verdict its answer is still about the same fault."""
    why: str


@dataclass(frozen=True)
class Judging:
    version: str
    tests: tuple[IndependentTest, ...]
    by_people: Mapping[str, str]
    """Checks that no test can judge, and why."""
    again_after_s: float
    """How long no test judges a check again on the same node: who can make it fail, can do so often."""
    shadow: Mapping[str, float]
    facts: tuple[str, ...]
    """Checks whose failure states a fact, and acts before they have a record."""

    def test_of(self, check: str) -> IndependentTest | None:
        return next((each for each in self.tests if check in each.of), None)

    def limits(self, limits: Limits) -> Limits:
        """Return the limits with the rules of the shadow."""
        return replace(
            limits,
            facts=frozenset(self.facts),
            judged_minimum=int(self.shadow["judged_minimum"]),
            precision_minimum=self.shadow["precision_minimum"],
            judged_kept=int(self.shadow["judged_kept"]),
            judged_per_node=int(self.shadow["judged_per_node"]),
            judged_per_tenant=int(self.shadow["judged_per_tenant"]),
        )


@cache
def judging() -> Judging:
    return parse(resources.files("neocloud.fleet.control").joinpath(FILE).read_text())


def parse(text: str) -> Judging:
    """Return the rules of a document. Raises ValueError for a check that judges itself or has two rows."""
    document: dict[str, Any] = json.loads(text)
    tests = tuple(
        IndependentTest(
            tuple(row["of"]), row["test"], MeansOfTest(row["kind"]), float(row["within_s"]), row["why"]
        )
        for row in document["tests"]
    )
    people = {check: str(row["why"]) for row in document["people"] for check in row["of"]}
    rows = [check for row in (*document["tests"], *document["people"]) for check in row["of"]]
    if twice := sorted(check for check in set(rows) if rows.count(check) > 1):
        raise ValueError(f"{FILE} has two rows for {twice[0]}")
    if itself := [test.check for test in tests if test.check in test.of]:
        raise ValueError(f"{FILE}: {itself[0]} would judge itself")
    shadow = {name: float(value) for name, value in document["shadow"].items() if name != "why"}
    return Judging(
        str(document["version"]),
        tests,
        people,
        float(document["again_after_s"]),
        shadow,
        tuple(document["facts"]["of"]),
    )


def wanted_tests(
    rules: Judging, failing: Iterable[Failing], state: NodeState, now: float
) -> Mapping[str, float]:
    """Return the active checks that would judge failing verdicts of a node, with the time of the verdict."""
    found: dict[str, float] = {}
    for each in _open(rules, failing, state, now):
        test = rules.test_of(each.verdict.check)
        if test is not None and test.kind is MeansOfTest.ACTIVE:
            found[test.check] = max(each.verdict.at, found.get(test.check, each.verdict.at))
    return found


def judgements(
    rules: Judging,
    failing: Iterable[Failing],
    state: NodeState,
    answers: Answers,
    may_judge: Callable[[IndependentTest], bool],
    now: float,
) -> Sequence[Judged]:
    """Return what tests say of the failing verdicts of a node. `may_judge`: whether a test is reliable."""
    found: list[Judged] = []
    for each in _open(rules, failing, state, now):
        verdict, test = each.verdict, rules.test_of(each.verdict.check)
        answer = answers.get((state.node, test.check)) if test is not None else None
        if test is None or answer is None or not may_judge(test):
            continue
        is_confirmed = _confirms(test, verdict, answer)
        if is_confirmed is not None:
            by = f"{BY_TEST}{test.check}"
            found.append(Judged(now, state.node, verdict.check, verdict.id, is_confirmed, by))
    return found


def _open(rules: Judging, failing: Iterable[Failing], state: NodeState, now: float) -> Sequence[Failing]:
    """Return the last failing verdict of each check that a test may still judge."""
    last = {each.verdict.check: each for each in failing if each.verdict.boot == state.boot}
    judged_at = dict(state.findings)
    return [
        each
        for check, each in last.items()
        if each.judged is None
        and (test := rules.test_of(check)) is not None
        and now <= each.verdict.at + test.within_s + rules.again_after_s
        and now >= judged_at.get(check, float("-inf")) + rules.again_after_s
    ]


def _confirms(test: IndependentTest, verdict: Verdict, answer: Verdict) -> bool | None:
    """Return whether an answer of the test confirms the verdict; None where it does not say.

    One that passes refutes a verdict that was short, too: draining the node for it would have been wrong."""
    if answer.boot != verdict.boot or answer.check in (verdict.check, ""):
        return None
    after = answer.at - verdict.at
    if after > test.within_s:
        return None
    if answer.status is Status.FAIL and (
        after > 0 or (test.kind is MeansOfTest.MEASUREMENT and after >= -BEFORE_S)
    ):
        return True
    return False if answer.status is Status.PASS and after > 0 else None
