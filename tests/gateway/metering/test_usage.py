"""AIS-14: usage is read from the bytes, however they are cut, and hidden where not asked for."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocloud.gateway.metering.usage import EventStream, EventTooLong, TokenUsage, usage_of_answer

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


def test_usage_in_each_event_hides_none_of_the_text() -> None:
    """vLLM's continuous_usage_stats."""
    events = [
        event({"choices": [{"delta": {"content": "a"}}], "usage": {**USAGE, "completion_tokens": n}})
        for n in (1, 2)
    ]
    stream = EventStream(hides_usage=True)
    assert stream.push(b"".join(events) + LAST + DONE) == b"".join(events) + DONE
    assert stream.usage == TokenUsage(7, 4, 3)


def test_half_an_event_is_never_passed_on() -> None:
    stream = EventStream(hides_usage=True)
    assert stream.push(TEXTS[0] + TEXTS[1][:9]) == TEXTS[0]
    assert stream.push(TEXTS[1][9:12]) == b""
    assert stream.push(TEXTS[1][12:]) == TEXTS[1]


def test_an_event_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neocloud.gateway.metering.usage.MAX_EVENT_BYTES", 1000)
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
