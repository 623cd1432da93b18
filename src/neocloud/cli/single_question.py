"""Send one question to a model and stream the answer to the terminal, with the figures of the chat page."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from neocloud.cli.output import JsonObject, say
from neocloud.cli.terminal import write
from neocloud.client.gateway import Gateway

PATIENCE_SECONDS = 3.0
"""Time without an answer after which the reason is given."""
MILLION = Decimal(1_000_000)


@dataclass
class Measured:
    """Timing and usage of one answer. Seconds count from the moment the request is sent."""

    first_seconds: float | None = None
    total_seconds: float = 0.0
    usage: JsonObject = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        """Speed of writing, measured from the first token on."""
        tokens = self.usage.get("completion_tokens", 0)
        writing = self.total_seconds - (self.first_seconds or 0.0)
        if tokens > 1 and writing > 0:
            return (tokens - 1) / writing
        return tokens / self.total_seconds if self.total_seconds else 0.0


def answer(gateway: Gateway, body: JsonObject, pricing: Mapping[str, str] | None) -> None:
    """Print the answer to stdout and its figures to stderr."""
    measured = _stream(gateway, body)
    say(figures(measured, pricing))


def _say_why_it_takes_long(model: str) -> None:
    say(f"Waiting for {model}: it may be starting, which takes a minute or more. `neo ps` shows its state.")


def _stream(gateway: Gateway, body: JsonObject) -> Measured:
    measured = Measured()
    began = time.monotonic()
    ends_line = True
    patience = threading.Timer(
        PATIENCE_SECONDS, _say_why_it_takes_long, [str(body.get("model", "The model"))]
    )
    patience.daemon = True
    patience.start()
    try:
        for chunk in gateway.stream("chat/completions", {**body, "stream_options": {"include_usage": True}}):
            patience.cancel()
            measured.usage = chunk.get("usage") or measured.usage
            for choice in chunk.get("choices", ()):
                text = choice.get("delta", {}).get("content") or ""
                if not text:
                    continue
                if measured.first_seconds is None:
                    measured.first_seconds = time.monotonic() - began
                    text = text.lstrip()
                measured.total_seconds = time.monotonic() - began
                write(text)
                ends_line = text.endswith("\n")
    finally:
        patience.cancel()
    if not ends_line:
        write("\n")
    return measured


def figures(measured: Measured, pricing: Mapping[str, str] | None) -> str:
    usage = measured.usage
    first = "-" if measured.first_seconds is None else f"{measured.first_seconds:.2f} s"
    return (
        f"first token {first}, total {measured.total_seconds:.2f} s,"
        f" {measured.tokens_per_second:.1f} tokens/s,"
        f" {usage.get('prompt_tokens', 0)} tokens in, {usage.get('completion_tokens', 0)} out,"
        f" {format_cost(usage, pricing)}"
    )


def format_cost(usage: JsonObject, pricing: Mapping[str, str] | None) -> str:
    """Return the cost as text; prices are in dollars per million tokens."""
    if pricing is None:
        return "unpriced"
    if pricing.get("charge") == "by_hour":
        return "paid by the hour"
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    counts = {
        "input": usage.get("prompt_tokens", 0) - cached,
        "cached_input": cached,
        "output": usage.get("completion_tokens", 0),
    }
    dollars = sum(count * Decimal(pricing[name]) for name, count in counts.items()) / MILLION
    return f"${dollars.normalize():f}"
