"""`neo chat`: a link to the chat page, or one answer in the terminal."""

import os
import sys
import webbrowser
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from neocloud.cli.gateway import gateway_of
from neocloud.cli.lazy import command_group
from neocloud.cli.one_answer import answer
from neocloud.cli.output import say
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.client.gateway import Gateway

app = command_group()


@app.command()
def chat(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(help="Model to chat with; without, a fine-tuned one beside its base.")
    ] = "",
    compare: Annotated[str, typer.Option(help="Another one beside it, e.g. its base.", metavar="MODEL")] = "",
    once: Annotated[
        str, typer.Option(help="Ask this here and now instead, in the terminal.", metavar="QUESTION")
    ] = "",
    system: Annotated[str, typer.Option(help="What the model is told first; with --once.")] = "",
    temperature: Annotated[float, typer.Option(min=0, max=2, help="With --once.")] = 0.6,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer; with --once.")] = 512,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the link, where there is a browser.")
    ] = True,
    project: Annotated[str, typer.Option(help="Project id; with --once. Default: the profile's.")] = "",
    gateway: Annotated[
        str,
        typer.Option(help="Another gateway than the profile's, with a key in OPENAI_API_KEY.", metavar="URL"),
    ] = "",
) -> None:
    """Chat with models in the browser: prints a link that signs you in once, within five minutes.

    With --once the question is answered here; the answer goes to stdout, its figures to stderr.

    Examples:

      neo chat
      neo chat bank --compare tiny
      neo chat bank --once "How do I block my card?"
    """
    with gateway_of(context, gateway, project) as opened:
        if once:
            if compare:
                raise ClientError(
                    "INVALID_ARGUMENT", "--once asks one model", "Leave --compare away, or ask twice"
                )
            found = _model(opened, model)
            messages = [{"role": "system", "content": system}] if system else []
            messages.append({"role": "user", "content": once})
            body = {"model": found["id"], "messages": messages, "temperature": temperature}
            answer(opened, {**body, "max_tokens": max_tokens}, found.get("pricing"))
            return
        for name in filter(None, (model, compare)):
            _model(opened, name)
        link = _link(opened, model, compare)
    echo(link)
    if browser and sys.stdout.isatty() and _has_browser():
        webbrowser.open(link)
    else:
        say("Open it in a browser on this machine; from elsewhere, through `ssh -L` with the same port.")


def _model(gateway: Gateway, name: str) -> Any:
    if name:
        return gateway.get(f"models/{quote(name)}")
    models = gateway.get("models")["data"]
    if len(models) == 1:
        return models[0]
    names = ", ".join(model["id"] for model in models)
    raise ClientError(
        "INVALID_ARGUMENT",
        "There is no model to ask" if not models else f"There are several models: {names}",
        "Serve one: neo deploy MODEL" if not models else 'Say which: neo chat MODEL --once "..."',
    )


def _link(gateway: Gateway, model: str, compare: str) -> str:
    """The code is after the #, so that no server's log ever sees it."""
    fields = {"code": gateway.post("chat/links", {})["code"], "model": model, "compare": compare}
    said = urlencode({name: value for name, value in fields.items() if value}, quote_via=quote)
    return f"{gateway.base_url.removesuffix('/v1')}/chat#{said}"


def _has_browser() -> bool:
    """One with windows: those of the terminal do not run scripts."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
