"""`neo chat`: a link to the chat page, or one answer that is streamed to the terminal, with its figures."""

import os
import sys
import threading
import time
import webbrowser
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any
from urllib.parse import quote, urlencode, urlsplit

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.output import JsonObject, say
from neocloud.cli.resources.lookup import connect_to_project
from neocloud.cli.target import gateway_of
from neocloud.cli.terminal import echo, write
from neocloud.client.errors import ClientError
from neocloud.client.gateway import Gateway

app = command_group()
PATIENCE_SECONDS = 3.0
"""Time without an answer after which the reason is given."""
MILLION = Decimal(1_000_000)


@app.command()
def chat(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(help="Model to chat with. Default: a fine-tuned one next to its base.")
    ] = "",
    compare: Annotated[
        str, typer.Option(help="Second model to compare with, e.g. the base.", metavar="MODEL")
    ] = "",
    once: Annotated[
        str, typer.Option(help="Answer this question in the terminal instead.", metavar="QUESTION")
    ] = "",
    system: Annotated[str, typer.Option(help="System prompt; with --once.")] = "",
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=2,
            help="Sampling temperature; with --once. Default: the model's own.",
            show_default=False,
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum length of the answer; with --once.")] = 512,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the link if there is a browser.")
    ] = True,
    project: Annotated[
        str, typer.Option(help="Id or name of the project; with --once. Default: the profile's.")
    ] = "",
    gateway: Annotated[
        str,
        typer.Option(help="URL of another gateway, with its key in OPENAI_API_KEY.", metavar="URL"),
    ] = "",
) -> None:
    """Chat with models in the browser: print a link that signs you in once, within five minutes.

    With --once the question is answered in the terminal: the answer goes to stdout, its figures to stderr.

    Examples:

      neo chat
      neo chat assistant --compare tiny
      neo chat assistant --once "How do I block my card?"
    """
    if project and not gateway:
        project = connect_to_project(context, project).project
    with gateway_of(context, gateway, project) as opened:
        if once:
            if compare:
                next_step = "Omit --compare, or run the command twice"
                raise ClientError("INVALID_ARGUMENT", "--once uses one model", next_step)
            _answer_once(opened, _model(opened, model), once, system, temperature, max_tokens)
            return
        for name in filter(None, (model, compare)):
            _model(opened, name)
        link = _link(opened, model, compare)
    echo(link)
    if browser and sys.stdout.isatty() and _has_browser():
        webbrowser.open(link)
    else:
        say(where_to_open(link))


def _answer_once(
    gateway: Gateway, model: Any, question: str, system: str, temperature: float | None, max_tokens: int
) -> None:
    """Print the answer; without a temperature the model's own settings decide."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": question})
    body = {"model": model["id"], "messages": messages, "max_tokens": max_tokens}
    if temperature is not None:
        body["temperature"] = temperature
    answer(gateway, body, model.get("pricing"))


def _model(gateway: Gateway, name: str) -> Any:
    if name:
        return gateway.get(f"models/{quote(name)}")
    models = [each for each in gateway.get("models")["data"] if each.get("task", "generate") == "generate"]
    if len(models) == 1:
        return models[0]
    names = ", ".join(model["id"] for model in models)
    raise ClientError(
        "INVALID_ARGUMENT",
        "No model is served" if not models else f"There are several models: {names}",
        "Serve one: neo deploy MODEL" if not models else 'Name one: neo chat MODEL --once "..."',
    )


def _link(gateway: Gateway, model: str, compare: str) -> str:
    """Return the link; the code follows the #, so that it never appears in a server's log."""
    fields = {"code": gateway.post("chat/links", {})["code"], "model": model, "compare": compare}
    said = urlencode({name: value for name, value in fields.items() if value}, quote_via=quote)
    return f"{gateway.base_url.removesuffix('/v1')}/chat#{said}"


def where_to_open(link: str) -> str:
    """Return in which browser the link opens: one of loopback on another machine only through ssh."""
    if urlsplit(link).hostname in ("127.0.0.1", "::1", "localhost"):
        return "Open it in a browser on this machine, or on another one through `ssh -L` with the same port."
    return "Open it in a browser, on this machine or any other that reaches the address."


def _has_browser() -> bool:
    """Return whether there is a graphical browser; text browsers do not run scripts."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


@dataclass
class Measured:
    """Timing and usage of one answer. Seconds count from the moment the request is sent."""

    first_seconds: float | None = None
    total_seconds: float = 0.0
    usage: JsonObject = field(default_factory=JsonObject)

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
    cached: int = JsonObject(usage.get("prompt_tokens_details") or ()).get("cached_tokens") or 0
    counts: dict[str, int] = {
        "input": usage.get("prompt_tokens", 0) - cached,
        "cached_input": cached,
        "output": usage.get("completion_tokens", 0),
    }
    dollars = sum(count * Decimal(pricing[name]) for name, count in counts.items()) / MILLION
    return f"${dollars.normalize():f}"
