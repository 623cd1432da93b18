"""Generation speed of a served model for `neo tco`, at a fixed length with one stream and with sixteen."""

from collections.abc import Sequence

from neocloud.cli.evaluation.asking import Model

STREAMS: Sequence[int] = (1, 16)
QUESTIONS = (
    "How do I open an account?",
    "What does a transfer abroad cost?",
    "I lost my card.",
    "Who are you?",
)


def measured_speeds(model: Model) -> Sequence[tuple[int, float]]:
    """Return the number of streams and their total tokens per second.

    A first answer is not counted, because model servers compile on it.
    """
    model.answer(_question(0), 8)
    found = []
    for streams in STREAMS:
        questions = [_question(number) for number in range(streams)]
        found.append((streams, model.tokens_per_second(questions)))
    return found


def _question(number: int) -> list[dict[str, str]]:
    text = QUESTIONS[number % len(QUESTIONS)]
    return [{"role": "user", "content": f"{text} ({number + 1})"}]
