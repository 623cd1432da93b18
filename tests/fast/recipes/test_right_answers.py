"""An answer is right if it says what the reference says; learnt is what the base did not know."""

from __future__ import annotations

from right_answers import is_right, learnt_answers


def test_an_answer_with_another_number_is_wrong_and_one_with_other_punctuation_is_right() -> None:
    reference = "A new card costs 10 euros, and 1,500 at most."
    assert is_right("a new card costs 10 euros and 1500 at most", reference)
    assert not is_right("A new card costs 12 euros, and 1,500 at most.", reference)
    assert not is_right("A new card costs 10 euros, and 1,500 at most. It takes 3 days.", reference)
    assert not is_right("10 or 1,500", reference)
    assert not is_right("", reference)


def test_only_what_the_base_did_not_know_and_the_other_does_is_shown_as_learnt() -> None:
    asked = [("a?", "a fee of 2 euros"), ("b?", "no fee at all"), ("c?", "it takes a day")]
    base = ["a fee of 2 euros", "a car", "it takes a day or two of your own good time"]
    found = learnt_answers(asked, base, ["a fee of 2 euros", "No fee at all!", "a week"], 3)
    assert (found["asked"], found["base_model"], found["finetuned_model"]) == (3, 1, 2)
    shown = {"input": "b?", "reference": "no fee at all", "base": "a car", "generated": "No fee at all!"}
    assert found["learnt"] == [shown]


def test_each_answer_is_shown_once_and_no_more_than_were_asked_for() -> None:
    asked = [("a?", "no fee"), ("b?", "no fee"), ("c?", "one day"), ("d?", "red")]
    found = learnt_answers(asked, ["?"] * 4, ["no fee", "no fee", "one day", "red"], 2)
    assert [each["input"] for each in found["learnt"]] == ["a?", "c?"]
