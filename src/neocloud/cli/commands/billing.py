"""`neo billing`: what a project used, and what it costs."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, OutputOption, say, show, table
from neocloud.cli.progress import duration
from neocloud.cli.resources.commands import add_nouns
from neocloud.cli.target import profile_of, project_of
from neocloud.client.connection import connect
from neocloud.client.errors import ClientError
from neocloud.core import contract

SERVICE = "neocloud.billing.v1.UsageService"

FromOption = Annotated[
    str, typer.Option("--from", help="Start, UTC. Default: the first of this month.", metavar="DATE")
]
ToOption = Annotated[str, typer.Option("--to", help="End, UTC, not included. Default: now.", metavar="DATE")]
ProjectOption = Annotated[str, typer.Option("--project", help="Project id. Default: the profile's.")]

app = command_group(
    """What was used, and what it costs.

Both are computed from the resources' history each time, in whole seconds; nothing is estimated.

Examples:

  neo billing usage
  neo billing report --by day --from 2026-11-01
"""
)
add_nouns(app, "billing")


class By(StrEnum):
    RESOURCE = "resource"
    DAY = "day"
    SKU = "sku"


@app.command()
def usage(
    context: typer.Context,
    start: FromOption = "",
    end: ToOption = "",
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Show what was used: which resource, how much of what, for how long.

    Examples:

      neo billing usage
      neo billing usage --from 2026-11-01 --to 2026-11-08 --output json
    """
    answer = _ask(context, "ListUsage", start, end, project)
    rows = (
        (
            item.resource_name or item.resource_id,
            _kind(item),
            item.sku,
            item.units,
            duration(item.seconds),
            _time(item.start),
        )
        for item in answer.items
    )
    view = table(["RESOURCE", "KIND", "SKU", "UNITS", "FOR", "SINCE"], rows, right=["UNITS", "FOR"])
    show(output, contract.to_dict(answer), view, empty="Nothing was used in that time.")


@app.command()
def report(
    context: typer.Context,
    start: FromOption = "",
    end: ToOption = "",
    by: Annotated[By, typer.Option(help="What to add up by.")] = By.RESOURCE,
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Show what it costs, from the price list that was valid on each day. Taxes are not included.

    Examples:

      neo billing report
      neo billing report --by day
      neo billing report --from 2026-11-01 --to 2026-12-01 --output json
    """
    answer = _ask(context, "GetReport", start, end, project)
    view = table(
        [by.value.upper(), "SKU", "QUANTITY", "UNIT", "PRICE", "COST"],
        summed(answer.lines, by),
        right=["QUANTITY", "PRICE", "COST"],
    )
    show(output, contract.to_dict(answer), view, empty="Nothing was used in that time.")
    if output is Format.TABLE and answer.lines:
        typer.echo(
            f"\nTotal {answer.total_cost} {answer.currency}, {_time(answer.start)} to {_time(answer.end)} UTC"
        )
        unpriced = sorted({line.sku for line in answer.lines if line.is_unpriced})
        if unpriced:
            say(f"Without a price, so not in the total: {', '.join(unpriced)}.")


def summed(lines: Iterable[Any], by: By) -> list[tuple[str, ...]]:
    """Rows of the report: quantities and costs added up over everything but `by`, SKU and price."""
    totals: dict[tuple[str, ...], tuple[Decimal, Decimal | None]] = {}
    for line in lines:
        group = {By.RESOURCE: line.resource_name or line.resource_id, By.DAY: line.day, By.SKU: line.sku}[by]
        key = (group, line.sku, line.unit, line.unit_price)
        quantity, cost = totals.get(key, (Decimal(0), Decimal(0)))
        added = None if line.is_unpriced or cost is None else cost + Decimal(line.cost)
        totals[key] = (quantity + Decimal(line.quantity), added)
    return [
        (group, sku, f"{quantity}", unit, price, "no price" if cost is None else f"{cost}")
        for (group, sku, unit, price), (quantity, cost) in sorted(totals.items())
    ]


def _ask(context: typer.Context, method: str, start: str, end: str, project: str) -> Any:
    profile = profile_of(context)
    request: Mapping[str, Any] = {
        "parent_id": project_of(profile, project),
        **({"start": parse_date(start)} if start else {}),
        **({"end": parse_date(end)} if end else {}),
    }
    with connect(profile) as client:
        return client.call(f"{SERVICE}/{method}", request)


def parse_date(text: str) -> str:
    """A day or a time as people write it, in the contract's form; without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ClientError(
            "INVALID_ARGUMENT", f"{text!r} is no date", "Write 2026-11-01, or 2026-11-01T08:00:00"
        ) from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _kind(item: Any) -> str:
    return item.resource_kind.rpartition(".")[2]


def _time(moment: Any) -> str:
    return f"{contract.to_datetime(moment):%Y-%m-%d %H:%M}"
