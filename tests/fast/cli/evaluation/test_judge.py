"""Pairwise judging: the place of an answer decides nothing, and no verdict is guessed."""

from typing import Any

import pytest

from neocloud.cli.evaluation.client import Model
from neocloud.cli.evaluation.conversations import Question
from neocloud.cli.evaluation.judge import Judged, judge_answers, verdict
from neocloud.client.errors import ClientError

QUESTIONS = [
    Question([{"role": "user", "content": f"question {number}?"}], f"right {number}") for number in range(4)
]
GOOD, BAD = "a good answer", "a bad answer"


class FakeGateway:
    def __init__(self, rule: Any) -> None:
        self.rule = rule
        self.bodies: list[Any] = []

    def post(self, path: str, body: Any) -> Any:
        self.bodies.append(body)
        text = body["messages"][-1]["content"]
        answers = text.partition("Answer A:\n")[2]
        first, _, second = answers.partition("\n\nAnswer B:\n")
        return {
            "choices": [{"message": {"content": self.rule(first, second)}}],
            "usage": {"completion_tokens": 1},
        }


def judged(rule: Any, base: dict[int, str], candidate: dict[int, str]) -> Judged:
    found = Judged()
    judge = Model(FakeGateway(rule), "judge")  # type: ignore[arg-type]
    judge_answers(judge, QUESTIONS, (base, candidate), 2, found, lambda text: None)
    return found


def by_merit(first: str, second: str) -> str:
    return "TIE" if first == second else "A" if first == GOOD else "B"


def test_an_answer_wins_where_both_orders_say_so() -> None:
    found = judged(by_merit, {0: BAD, 1: GOOD, 2: GOOD, 3: BAD}, {0: GOOD, 1: BAD, 2: GOOD})
    assert found.preferences == {0: 1.0, 1: 0.0, 2: 0.5}
    document = found.document("judge")
    assert (document["won"], document["tied"], document["lost"], document["judged"]) == (1, 1, 1, 3)


def test_a_judge_that_prefers_a_place_makes_ties() -> None:
    found = judged(lambda first, second: "A", {0: BAD, 1: GOOD}, {0: GOOD, 1: BAD})
    assert found.preferences == {0: 0.5, 1: 0.5} and found.changed == 2
    assert "its verdict on 2 pairs changed with the order" in list(found.remarks)[0]


def test_a_verdict_that_is_none_is_counted_and_its_pair_left_out() -> None:
    def babbles(first: str, second: str) -> str:
        return "Both are fine, A and B." if first == BAD else "A"

    found = judged(babbles, {0: BAD, 1: GOOD}, {0: GOOD, 1: GOOD})
    assert found.unparsable == 1 and found.preferences == {1: 0.5}
    assert found.document("judge")["unparsable"] == 1


def test_a_judge_that_does_not_answer_is_an_error_of_each_pair() -> None:
    def fails(first: str, second: str) -> str:
        raise ClientError("UNAVAILABLE", "No replica is ready")

    found = judged(fails, {0: BAD, 1: GOOD}, {0: GOOD, 1: GOOD})
    assert not found.preferences and sum(found.errors.values()) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [("A", "A"), (" b.", "B"), ("**TIE**", "TIE"), ("Answer A", "A"), ("tie!", "TIE"), ("", ""), ("AB", "")]
    + [("A or B", ""), ("A is better", ""), ("C", ""), ("The answer is not A", "")],
)
def test_only_a_verdict_alone_is_one(text: str, expected: str) -> None:
    assert verdict(text) == expected
