"""`neo vector-store`: documents that are searched for answers."""

import json
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.output import (
    Format,
    OutputOption,
    YesOption,
    confirm,
    counted,
    fields_table,
    say,
    show,
    size_text,
    table,
    warn_of_error,
)
from neocloud.cli.progress import stage
from neocloud.cli.resources.lookup import Cloud
from neocloud.cli.target import gateway_of
from neocloud.client.errors import ClientError
from neocloud.client.gateway import Gateway

PAGE_SIZE = 100
LOOK_SECONDS = 0.5
EXCERPT = 160
"""Characters of a chunk in a table."""

app = command_group(
    """Documents that are searched for answers: `/v1/vector_stores` of the OpenAI API.

Examples:

  neo vector-store create bank terms.pdf fees.html
  neo vector-store search bank "What does an overdraft cost?"
  neo vector-store list
"""
)
StoreArgument = Annotated[str, typer.Argument(metavar="STORE", help="Name or id of the vector store.")]
Attributes = Annotated[
    list[str],
    typer.Option("--attribute", metavar="KEY=VALUE", help="Attribute of the files; may be repeated."),
]


@app.command("create")
def create(
    context: typer.Context,
    cloud: Cloud,
    name: Annotated[str, typer.Argument(help="Name of the vector store.")],
    files: Annotated[
        list[Path] | None, typer.Argument(help="Documents: text, HTML, JSON, CSV or PDF.")
    ] = None,
    embedding_model: Annotated[
        str,
        typer.Option(metavar="MODEL", help="Model that makes the vectors. Default: the only one there is."),
    ] = "",
    expires_days: Annotated[
        int, typer.Option(min=0, max=365, help="Days after the last use until it is removed; 0: it stays.")
    ] = 0,
    attribute: Attributes = [],  # noqa: B006  Typer reads it
) -> None:
    """Create a vector store, and add documents to it.

    Examples:

      neo vector-store create bank docs/*.md
      neo vector-store create bank --embedding-model minilm --expires-days 30
    """
    body: dict[str, object] = {"name": name}
    if embedding_model:
        body["neocloud"] = {"embedding_model": embedding_model}
    if expires_days:
        body["expires_after"] = {"anchor": "last_active_at", "days": expires_days}
    attributes = _attributes(attribute)
    with gateway_of(context, project=cloud.project) as gateway:
        if any(each["name"] == name for each in _all(gateway, "vector_stores")):
            next_step = f"Add documents with `neo vector-store add {name} FILE`, or choose another name"
            raise ClientError("ALREADY_EXISTS", f"There is a vector store {name}", next_step)
        _require_files(files or [])
        store = gateway.post("vector_stores", body)
        say(f"Vector store {name} ({store['id']}) is created.")
        _add(gateway, store["id"], files or [], attributes)


@app.command("add")
def add(
    context: typer.Context,
    cloud: Cloud,
    store: StoreArgument,
    files: Annotated[list[Path], typer.Argument(help="Documents: text, HTML, JSON, CSV or PDF.")],
    attribute: Attributes = [],  # noqa: B006
) -> None:
    """Add documents to a vector store, and wait until they are searched.

    Example:

      neo vector-store add bank fees-2027.pdf --attribute year=2027
    """
    attributes = _attributes(attribute)
    _require_files(files)
    with gateway_of(context, project=cloud.project) as gateway:
        _add(gateway, _found(gateway, store)["id"], files, attributes)


@app.command("search")
def search(
    context: typer.Context,
    cloud: Cloud,
    store: StoreArgument,
    query: Annotated[str, typer.Argument(help="Question or words.")],
    limit: Annotated[int, typer.Option(min=1, max=50, help="Most results.")] = 5,
    threshold: Annotated[float, typer.Option(min=0, max=1, help="Least score of a result.")] = 0.0,
    filters: Annotated[
        str, typer.Option("--filter", metavar="JSON", help="Filter on attributes, as in the OpenAI API.")
    ] = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Search a vector store.

    Examples:

      neo vector-store search bank "What does an overdraft cost?"
      neo vector-store search bank fees --filter '{"type": "gte", "key": "year", "value": 2026}'
    """
    body: dict[str, object] = {"query": query, "max_num_results": limit}
    if threshold:
        body["ranking_options"] = {"score_threshold": threshold}
    if filters:
        try:
            body["filters"] = json.loads(filters)
        except ValueError as error:
            raise ClientError("INVALID_ARGUMENT", f"--filter is not JSON: {error}") from None
    with gateway_of(context, project=cloud.project) as gateway:
        path = f"vector_stores/{_found(gateway, store)['id']}/search"
        found = gateway.post(path, body)["data"]
    rows = [(f"{each['score']:.2f}", each["filename"], _excerpt(each)) for each in found]
    show(output, found, table(["SCORE", "FILE", "TEXT"], rows, right=["SCORE"]), empty="Nothing was found.")


@app.command("list")
def list_stores(context: typer.Context, cloud: Cloud, output: OutputOption = Format.TABLE) -> None:
    """List the vector stores of the project, the newest first.

    Example:

      neo vector-store list
    """
    with gateway_of(context, project=cloud.project) as gateway:
        stores = list(_all(gateway, "vector_stores"))
    rows = [
        (
            each["id"],
            each["name"],
            each["status"],
            each["file_counts"]["total"],
            size_text(each["usage_bytes"]),
        )
        for each in stores
    ]
    columns = ["ID", "NAME", "STATE", "FILES", "SIZE"]
    empty = "No vector stores. `neo vector-store create NAME FILE` makes one."
    show(output, stores, table(columns, rows, right=["FILES", "SIZE"]), empty=empty)


@app.command("get")
def get(
    context: typer.Context, cloud: Cloud, store: StoreArgument, output: OutputOption = Format.TABLE
) -> None:
    """Show a vector store, with the files that could not be read.

    Example:

      neo vector-store get bank
    """
    with gateway_of(context, project=cloud.project) as gateway:
        found = _found(gateway, store)
        failed = list(_all(gateway, f"vector_stores/{found['id']}/files", "filter=failed"))
    counts = ", ".join(f"{number} {state}" for state, number in found["file_counts"].items() if number)
    used = datetime.fromtimestamp(found["last_active_at"], UTC)
    pairs: list[tuple[str, object]] = [
        *(
            ("Id", found["id"]),
            ("Name", found["name"]),
            ("State", found["status"]),
            ("Files", counts or "none"),
        ),
        *(("Size", size_text(found["usage_bytes"])), ("Last used", f"{used:%Y-%m-%d %H:%M}")),
        ("Embedding model", found["neocloud"]["embedding_model"]),
        *((each["id"], each["last_error"]["message"]) for each in failed),
    ]
    show(output, found | {"failed_files": failed}, fields_table(pairs))


@app.command("delete")
def delete(context: typer.Context, cloud: Cloud, store: StoreArgument, yes: YesOption = False) -> None:
    """Delete a vector store. Its files stay: `neo tuning file list` shows them.

    Example:

      neo vector-store delete bank --yes
    """
    with gateway_of(context, project=cloud.project) as gateway:
        found = _found(gateway, store)
        confirm(f"vector store {found['name']} ({found['id']})", yes=yes)
        gateway.delete(f"vector_stores/{found['id']}")
    say(f"Vector store {found['name']} is deleted.")


def _all(gateway: Gateway, path: str, query: str = "") -> Iterator[Any]:
    after = ""
    while True:
        page = gateway.get(f"{path}?limit={PAGE_SIZE}&{query}{after}")
        yield from page["data"]
        if not page["has_more"]:
            return
        after = f"&after={page['data'][-1]['id']}"


def _found(gateway: Gateway, store: str) -> Any:
    """Return the store of this id or name. Raises ClientError where there is none, or several."""
    found = [each for each in _all(gateway, "vector_stores") if store in (each["id"], each["name"])]
    if len(found) > 1:
        ids = ", ".join(each["id"] for each in found)
        raise ClientError(
            "INVALID_ARGUMENT", f"Several vector stores are called {store}: {ids}", "Name one by its id"
        )
    if not found:
        next_step = "`neo vector-store list` shows those of the project"
        raise ClientError("NOT_FOUND", f"There is no vector store {store}", next_step)
    return found[0]


def _attributes(given: Sequence[str]) -> dict[str, object]:
    """Return attributes; numbers and booleans are read as such, so that filters can compare them."""
    found: dict[str, object] = {}
    for each in given:
        key, sign, value = each.partition("=")
        if not key or not sign:
            raise ClientError("INVALID_ARGUMENT", f"--attribute {each!r} is not KEY=VALUE")
        try:
            read = json.loads(value)
        except ValueError:
            read = value
        found[key] = read if isinstance(read, bool | int | float) else value
    return found


def _require_files(files: Sequence[Path]) -> None:
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise ClientError("INVALID_ARGUMENT", f"There is no file {missing}", "Check the path")


def _add(gateway: Gateway, store_id: str, files: Sequence[Path], attributes: dict[str, object]) -> None:
    """Upload files, add them, and wait until each is indexed or has failed."""
    if not files:
        return
    names: dict[str, str] = {}
    with stage(f"Adding {counted(len(files), 'document')}") as tell:
        for number, file in enumerate(files, 1):
            tell(f"{number} of {len(files)} uploaded")
            names[gateway.upload(file, "assistants")] = file.name
        body = {"file_ids": list(names), "attributes": attributes or None}
        batches = f"vector_stores/{store_id}/file_batches"
        batch = gateway.post(batches, body)
        while batch["status"] == "in_progress":
            done = batch["file_counts"]["total"] - batch["file_counts"]["in_progress"]
            tell(f"{done} of {len(files)} indexed")
            time.sleep(LOOK_SECONDS)
            batch = gateway.get(f"{batches}/{batch['id']}")
    failed = list(_all(gateway, f"{batches}/{batch['id']}/files", "filter=failed"))
    for each in failed:
        warn_of_error(f"{names[each['id']]}: {each['last_error']['message']}")
    say(f"{counted(len(files) - len(failed), 'document')} added.")
    if failed:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"{counted(len(failed), 'document')} could not be indexed",
            "Correct them, and add them again",
        )


def _excerpt(found: Any) -> str:
    text = " ".join(" ".join(part["text"] for part in found["content"]).split())
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]}..."
