"""`neo chat`: a link to the chat page, or one answer in the terminal."""

import os
import sys
import webbrowser
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from neocloud.cli.gateway import gateway_of
from neocloud.cli.lazy import command_group
from neocloud.cli.output import say
from neocloud.cli.single_question import answer
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.client.gateway import Gateway

app = command_group()


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
        float, typer.Option(min=0, max=2, help="Sampling temperature; with --once.")
    ] = 0.6,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum length of the answer; with --once.")] = 512,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the link if there is a browser.")
    ] = True,
    project: Annotated[str, typer.Option(help="Project id; with --once. Default: the profile's.")] = "",
    gateway: Annotated[
        str,
        typer.Option(help="URL of another gateway, with its key in OPENAI_API_KEY.", metavar="URL"),
    ] = "",
) -> None:
    """Chat with models in the browser: print a link that signs you in once, within five minutes.

    With --once the question is answered in the terminal: the answer goes to stdout, its figures to stderr.

    Examples:

      neo chat
      neo chat bank --compare tiny
      neo chat bank --once "How do I block my card?"
    """
    with gateway_of(context, gateway, project) as opened:
        if once:
            if compare:
                raise ClientError(
                    "INVALID_ARGUMENT", "--once uses one model", "Omit --compare, or run the command twice"
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
        say("Open it in a browser on this machine, or on another one through `ssh -L` with the same port.")


def _model(gateway: Gateway, name: str) -> Any:
    if name:
        return gateway.get(f"models/{quote(name)}")
    models = gateway.get("models")["data"]
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


def _has_browser() -> bool:
    """Return whether there is a graphical browser; text browsers do not run scripts."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
