"""AIS-14: usage is read from the bytes, however they are cut, and hidden where not asked for."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocloud.model_gateway.metering.usage import EventStream, EventTooLong, TokenUsage, usage_of_answer

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}


def event(content: object) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"


TEXTS = [event({"choices": [{"delta": {"content": text}}]}) for text in ("a", '"usage":{', "é\n\n", "d")]
LAST = event({"choices": [], "usage": USAGE})
DONE = b"data: [DONE]\n\n"
WHOLE = b"".join([*TEXTS, LAST, DONE])


@given(st.lists(st.integers(0, len(WHOLE)), max_size=12))
def test_a_stream_reads_the_same_however_it_is_cut(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(WHOLE)]
    stream = EventStream(hides_usage=True)
    pieces = [WHOLE[start:end] for start, end in zip(places, places[1:], strict=False) if end > start]
    passed = b"".join(stream.push(piece) for piece in pieces)
    assert passed == b"".join([*TEXTS, DONE])
    assert stream.usage == TokenUsage(input=7, cached_input=4, output=3)
    assert stream.events == len(TEXTS) + 1


def test_usage_is_shown_to_who_asked() -> None:
    stream = EventStream(hides_usage=False)
    assert stream.push(WHOLE) == WHOLE
    assert stream.usage is not None


def counted(output: int, index: int = 0, prompt: int = 7, text: str = "a") -> bytes:
    """An event of vLLM's continuous_usage_stats."""
    usage = {**USAGE, "prompt_tokens": prompt, "completion_tokens": output}
    return event({"id": "x", "choices": [{"index": index, "delta": {"content": text}}], "usage": usage})


def plain(text: str = "a", index: int = 0) -> bytes:
    return event({"id": "x", "choices": [{"index": index, "delta": {"content": text}}]})


@pytest.mark.parametrize("text", ["a", '"usage":{', ',"usage":{"a":{}}}', "{}}{", "\\"])
def test_usage_in_each_event_is_read_and_hidden_from_who_did_not_ask(text: str) -> None:
    stream = EventStream(hides_usage=True, hides_each=True)
    assert stream.push(counted(1, text=text) + counted(2, text=text)) == plain(text) * 2
    assert (stream.usage, stream.usage_so_far) == (None, TokenUsage(7, 4, 2))
    assert stream.push(counted(3, text=text) + LAST + DONE) == plain(text) + DONE
    assert stream.usage == stream.usage_so_far == TokenUsage(7, 4, 3)


def test_usage_in_each_event_is_shown_to_who_asked() -> None:
    stream = EventStream(hides_usage=True)
    assert stream.push(counted(1) + counted(2) + LAST + DONE) == counted(1) + counted(2) + DONE
    assert stream.usage == TokenUsage(7, 4, 3)


def test_choices_and_prompts_of_a_broken_stream_are_added_up() -> None:
    """Two prompts of 7 and 9 tokens, each with two choices."""
    stream = EventStream(hides_usage=True, hides_each=True, choices=2)
    events = [(5, 0, 7), (6, 1, 7), (8, 2, 9), (1, 3, 9), (6, 0, 7), (2, 3, 9)]
    stream.push(b"".join(counted(*each) for each in events))
    assert stream.usage_so_far == TokenUsage(input=16, cached_input=8, output=6 + 6 + 8 + 2)


@given(st.lists(st.integers(0, 400), max_size=12))
def test_what_was_counted_is_the_same_however_it_is_cut(cuts: list[int]) -> None:
    whole = b"".join(counted(number) for number in range(1, 4))
    places = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    stream = EventStream(hides_usage=True, hides_each=True)
    pieces = [whole[start:end] for start, end in zip(places, places[1:], strict=False) if end > start]
    assert b"".join(stream.push(piece) for piece in pieces) == plain() * 3
    assert stream.usage_so_far == TokenUsage(7, 4, 3)


def test_half_an_event_is_never_passed_on() -> None:
    stream = EventStream(hides_usage=True)
    assert stream.push(TEXTS[0] + TEXTS[1][:9]) == TEXTS[0]
    assert stream.push(TEXTS[1][9:12]) == b""
    assert stream.push(TEXTS[1][12:]) == TEXTS[1]


def test_an_event_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neocloud.model_gateway.metering.usage.MAX_EVENT_BYTES", 1000)
    stream = EventStream(hides_usage=True)
    with pytest.raises(EventTooLong):
        for _ in range(3):
            stream.push(b"x" * 500)


def test_the_events_of_responses_have_their_own_names() -> None:
    usage = {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 2}, "output_tokens": 9}
    stream = EventStream(hides_usage=True)
    data = b"event: response.completed\n" + event(
        {"type": "response.completed", "response": {"usage": usage}}
    )
    assert stream.push(data) == data
    assert stream.usage == TokenUsage(5, 2, 9)


@pytest.mark.parametrize(
    ("content", "usage"),
    [
        (
            {"choices": [{"message": {"content": '"usage":{"prompt_tokens":99}'}}], "usage": USAGE},
            TokenUsage(7, 4, 3),
        ),
        ({"usage": {"prompt_tokens": 2, "total_tokens": 2}, "data": [0.5] * 999}, TokenUsage(2, 0, 0)),
        ({"usage": USAGE, "prompt_logprobs": [{"usage": {"a": 1}}]}, TokenUsage(7, 4, 3)),
        ({"usage": {"input_tokens": 1, "output_tokens": 2}}, TokenUsage(1, 0, 2)),
        ({"choices": []}, None),
        ({"usage": None}, None),
    ],
)
def test_usage_of_a_whole_answer(content: object, usage: TokenUsage | None) -> None:
    assert usage_of_answer(json.dumps(content).encode()) == usage
