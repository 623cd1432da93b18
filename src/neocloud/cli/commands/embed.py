"""`neo embed`: the vectors of texts, or texts in the order of a query."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, JsonObject, OutputOption, counted, say, show, table
from neocloud.cli.resources.lookup import connect_to_project
from neocloud.cli.target import gateway_of
from neocloud.client.errors import ClientError
from neocloud.client.gateway import Gateway

app = command_group()
FROM_STDIN = "-"
BATCH = 256
"""Texts of one request."""
MAX_RANKED = 1000
SHOWN_NUMBERS = 4


@app.command()
def embed(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Name of an embedding model that is served.")],
    texts: Annotated[
        list[str], typer.Argument(metavar="TEXT...", help="Texts, or - for the lines of standard input.")
    ],
    query: Annotated[
        str, typer.Option(help="Rank the texts by this query instead.", metavar="QUERY", show_default=False)
    ] = "",
    dimensions: Annotated[
        int, typer.Option(min=0, help="Length of the vectors, if the model can shorten them; 0: its own.")
    ] = 0,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut texts that are too long for the model.")
    ] = False,
    project: Annotated[str, typer.Option(help="Id or name of the project. Default: the profile's.")] = "",
    gateway: Annotated[
        str, typer.Option(help="URL of another gateway, with its key in OPENAI_API_KEY.", metavar="URL")
    ] = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Print the vectors of texts, or the texts in the order in which they answer a query.

    Figures go to stderr. A model that ranks by reading query and text together takes --query only.

    Examples:

      neo embed all-minilm-l6-v2 "How do I block my card?" "My card was stolen"
      neo embed all-minilm-l6-v2 --query "How do I block my card?" - <passages.txt
      neo embed all-minilm-l6-v2 - --output json <passages.txt >vectors.json
    """
    if query and dimensions:
        next_step = "Omit --dimensions, or --query"
        raise ClientError("INVALID_ARGUMENT", "--query returns no vectors, so they have no length", next_step)
    read = list(_texts(texts))
    if not read:
        raise ClientError("INVALID_ARGUMENT", "There is no text", "Name one, or send lines to standard input")
    if query and len(read) > MAX_RANKED:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"There are {len(read):,} texts, and at most {MAX_RANKED:,} are ranked at a time",
            "Embed them once and compare the vectors, as a vector store does",
        )
    if project and not gateway:
        project = connect_to_project(context, project).project
    asked: JsonObject = {"model": model, **({"truncate_prompt_tokens": -1} if truncate else {})}
    if dimensions:
        asked["dimensions"] = dimensions
    with gateway_of(context, gateway, project) as opened:
        if query:
            _rank(opened, {**asked, "query": query}, read, output)
        else:
            _embed(opened, asked, read, output)


def _texts(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the texts; for "-" the lines of standard input that are not empty."""
    for argument in arguments:
        if argument != FROM_STDIN:
            yield argument
        else:
            yield from (line.rstrip("\r\n") for line in sys.stdin if line.strip())


def _embed(gateway: Gateway, asked: JsonObject, texts: Sequence[str], output: Format) -> None:
    began, tokens = time.monotonic(), 0
    found: list[JsonObject] = []
    for start in range(0, len(texts), BATCH):
        batch = texts[start : start + BATCH]
        answer = gateway.post("embeddings", {**asked, "input": batch, "encoding_format": "float"})
        tokens += answer["usage"]["prompt_tokens"]
        vectors = sorted(answer["data"], key=lambda each: each["index"])
        found += [
            {"index": start + number, "text": text, "embedding": each["embedding"]}
            for number, (text, each) in enumerate(zip(batch, vectors, strict=True))
        ]
    seconds = time.monotonic() - began
    rows = [(each["text"], len(each["embedding"]), _start(each["embedding"])) for each in found]
    show(output, found, table(("TEXT", "LENGTH", "VECTOR"), rows, right=("LENGTH",)))
    say(_figures(counted(len(found), "vector"), tokens, len(found), seconds))


def _rank(gateway: Gateway, asked: JsonObject, texts: Sequence[str], output: Format) -> None:
    began = time.monotonic()
    answer = gateway.post("rerank", {**asked, "documents": list(texts)})
    seconds = time.monotonic() - began
    found: list[JsonObject] = [{**each, "text": texts[each["index"]]} for each in answer["results"]]
    rows = [(f"{each['relevance_score']:.3f}", each["text"]) for each in found]
    show(output, found, table(("SCORE", "TEXT"), rows, right=("SCORE",)))
    tokens = answer.get("usage", {}).get("prompt_tokens", 0)
    say(_figures(counted(len(found), "text"), tokens, len(found), seconds))


def _start(vector: Sequence[Any]) -> str:
    shown = " ".join(f"{number:.3f}" for number in vector[:SHOWN_NUMBERS])
    return shown if len(vector) <= SHOWN_NUMBERS else f"{shown} ..."


def _figures(what: str, tokens: int, texts: int, seconds: float) -> str:
    return f"{what}, {counted(tokens, 'token')} in, {seconds:.2f} s, {texts / max(seconds, 1e-6):.1f} texts/s"
