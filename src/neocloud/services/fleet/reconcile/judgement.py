# pyright: strict
"""Judges the failing verdicts of a pool by what independent tests say of the same nodes. Pure."""

from collections.abc import Iterable
from functools import partial

from neocloud.fleet.control.breakers import Breakers
from neocloud.fleet.control.judging import IndependentTest, Judging, MeansOfTest, judgements
from neocloud.fleet.nodes.events import Judged, Verdict
from neocloud.services.fleet.logs.node_logs import PoolLog


def judged(log: PoolLog, rules: Judging, verdicts: Iterable[Verdict], now: float) -> list[Judged]:
    """Return the judgements that follow from the last answers of all checks."""
    answers = {(each.node, each.check): each for each in sorted(verdicts, key=lambda each: each.at)}
    may_judge = partial(is_reliable, log.fleet.breakers)
    return [
        found
        for node in log.failing.nodes
        if (state := log.fleet.nodes.get(node)) is not None
        for found in judgements(rules, log.failing.of(node), state, answers, may_judge, now)
    ]


def is_reliable(breakers: Breakers, test: IndependentTest) -> bool:
    """Return whether a test may judge: a measurement that may drain nodes itself; an active check, which has
    limits with a source, unless it was found to be wrong too often.
    """
    if test.kind is MeansOfTest.MEASUREMENT:
        return not breakers.in_shadow(test.check)
    return breakers.precision(test.check).judged < breakers.limits.judged_minimum or not breakers.in_shadow(
        test.check
    )
