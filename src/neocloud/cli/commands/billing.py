"""`neo billing`: usage and cost of a project."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neocloud.cli.commands.billing_report import By, account_names, added, cost_text, subtotals, summed, why
from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, JsonObject, OutputOption, say, show, table
from neocloud.cli.progress import duration
from neocloud.cli.resources.commands import add_nouns
from neocloud.cli.resources.lookup import Connected, ProjectOption, project_id_of
from neocloud.cli.storage.exports import ToBucketOption, exported
from neocloud.cli.target import profile_of
from neocloud.cli.terminal import echo
from neocloud.client.connection import connect
from neocloud.client.errors import ClientError
from neocloud.core import contract

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

SERVICE = "neocloud.billing.v1.UsageService"
FOCUS = "GetFocusReport"
CREDIT_SERVICE = "neocloud.billing.v1.CreditService"
PRICE_SERVICE = "neocloud.billing.v1.TokenPriceService"
TOKEN_UNIT = "million-tokens"
TOKEN_KINDS = ("input", "cached-input", "output")

FromOption = Annotated[
    str, typer.Option("--from", help="Start, UTC. Default: the first day of this month.", metavar="DATE")
]
ToOption = Annotated[str, typer.Option("--to", help="End, UTC, exclusive. Default: now.", metavar="DATE")]

app = command_group(
    """Usage and cost.

Both are computed on each call from the history of resources, in whole seconds, and from the token ledger,
which contains each request once.

Examples:

  neo billing usage
  neo billing report --by day --from 2026-11-01
  neo billing report --format focus > bill.csv
  neo billing credits
  neo billing tokens
"""
)
add_nouns(app, "billing")


class ReportFormat(StrEnum):
    LINES = "lines"
    FOCUS = "focus"


@app.command()
def usage(
    context: typer.Context,
    start: FromOption = "",
    end: ToOption = "",
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Show usage: resource, SKU, amount and duration, or the number of counted units.

    Examples:

      neo billing usage
      neo billing usage --from 2026-11-01 --to 2026-11-08 --output json
    """
    answer = _report(context, "ListUsage", start, end, project)
    rows = (
        (
            item.resource_name or item.resource_id,
            _kind(item),
            item.sku,
            item.units or f"{item.count:,}",
            duration(item.seconds) if item.seconds else "",
            _time(item.start),
        )
        for item in answer.items
    )
    view = table(["RESOURCE", "KIND", "SKU", "UNITS", "FOR", "SINCE, UTC"], rows, right=["UNITS", "FOR"])
    show(output, contract.to_document(answer), view, empty="Nothing was used in that time.")


@app.command()
def report(
    context: typer.Context,
    start: FromOption = "",
    end: ToOption = "",
    by: Annotated[By, typer.Option(help="Grouping of the report.")] = By.RESOURCE,
    project: ProjectOption = "",
    format: Annotated[
        ReportFormat, typer.Option(help="focus: CSV of FOCUS 1.2, a row for each day, resource and SKU.")
    ] = ReportFormat.LINES,
    to_bucket: ToBucketOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Show the cost, by the price list that was valid on each day. Taxes are not included.

    By account: tokens belong to the account that called the model, and anything else to the account that
    created the resource. Jobs on a Slurm cluster are the cost of the cluster.

    With --format focus the bill is CSV as the FinOps Open Cost and Usage Specification has it. Its costs add
    up to the total of the report. With --to-bucket the bill, JSON or CSV, becomes an object, which appears
    once it is whole. In a folder it is named after the time that it covers, such as
    billing-20261101T000000Z-20261201T000000Z.json, or focus-….csv.

    Examples:

      neo billing report
      neo billing report --by day
      neo billing report --by account
      neo billing report --from 2026-11-01 --to 2026-12-01 --output json
      neo billing report --from 2026-11-01 --to 2026-12-01 --to-bucket s3://bank-logs/bills/
      neo billing report --format focus --project tenant-e00abc > bill.csv
    """
    if format is ReportFormat.FOCUS:
        if output is not Format.TABLE:
            raise ClientError("INVALID_ARGUMENT", "--format focus is CSV; leave out --output")
        _write_focus(context, start, end, project, to_bucket)
        return
    answer = _report(context, "GetReport", start, end, project, by_account=by is By.ACCOUNT)
    if to_bucket:
        name = f"billing-{_compact(answer.start)}-{_compact(answer.end)}.json"
        with exported(context, to_bucket, name, project) as out:
            out(json.dumps(contract.to_document(answer), indent=2, ensure_ascii=False) + "\n")
        return
    names: Mapping[str, str] = {}
    if output is Format.TABLE and by is By.ACCOUNT:
        names = _account_names(context, answer.lines)
    headers = [by.value.upper(), "SKU", "QUANTITY", "UNIT", "PRICE", "COST"]
    rows = summed(answer.lines, by, names)
    if by is By.SKU:  # which the first column has already
        headers, rows = headers[1:], [row[1:] for row in rows]
    view = table(headers, rows, right=["QUANTITY", "PRICE", "COST"])
    show(output, contract.to_document(answer), view, empty="Nothing was used in that time.")
    if output is Format.TABLE and answer.lines:
        _print_totals(answer, by, names)


def _print_totals(answer: Any, by: By, names: Mapping[str, str]) -> None:
    if parts := subtotals(answer.lines, by, names):
        echo()
        show(Format.TABLE, None, table([by.value.upper(), "SUBTOTAL"], parts, right=["SUBTOTAL"]))
    echo(f"\nTotal {answer.total_cost} {answer.currency}, {_time(answer.start)} to {_time(answer.end)} UTC")
    if unpriced := sorted({line.sku for line in answer.lines if line.is_unpriced}):
        say(f"Without a price, so not in the total: {', '.join(unpriced)}.")


def _account_names(context: typer.Context, lines: Iterable[Any]) -> Mapping[str, str]:
    profile = profile_of(context)
    with connect(profile) as client:
        return account_names(client, profile.tenant_id, (line.account_id for line in lines))


def _write_focus(context: typer.Context, start: str, end: str, project: str, to_bucket: str) -> None:
    """Write the pages of the report, of a day each, after one another."""
    page = _report(context, FOCUS, start, end, project)
    name = f"focus-{_compact(page.start)}-{_compact(page.end)}.csv"
    with exported(context, to_bucket, name, project) as out:
        out(page.csv)
        while page.next_page_token:
            page = _report(context, FOCUS, start, end, project, page.next_page_token)
            out(page.csv)


@app.command()
def credits(
    context: typer.Context,
    start: FromOption = "",
    end: ToOption = "",
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Show capacity that is not charged: spares of Slurm clusters, and workers that the cloud took out of
    service.

    The evidence is the id in the drain reason of the node. Credits are in the report as lines with negative
    costs.

    Examples:

      neo billing credits
      neo billing credits --from 2026-11-01 --output json
    """
    answer = _report(context, "List", start, end, project, service=CREDIT_SERVICE)
    rows = (
        (
            f"{item.resource_name or item.resource_id}/{item.cause.part}",
            why(item.cause),
            item.cause.reason,
            f"{duration(item.seconds)}{' so far' if item.is_open else ''}",
            _time(item.start),
            item.amount,
        )
        for item in answer.items
    )
    view = table(
        ["NOT CHARGED", "BECAUSE", "WHAT", "FOR", "SINCE, UTC", "AMOUNT"], rows, right=["FOR", "AMOUNT"]
    )
    show(
        output, contract.to_document(answer), view, empty="Everything that was used in that time is charged."
    )
    if output is Format.TABLE and answer.items:
        window = f"{_time(answer.start)} to {_time(answer.end)} UTC"
        echo(f"\nTotal {answer.total_amount} {answer.currency}, {window}")


@app.command()
def tokens(
    context: typer.Context,
    start: FromOption = "",
    end: ToOption = "",
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Show the tokens and their cost by project and model. A tenant id instead of a project id shows all its
    projects.

    Examples:

      neo billing tokens
      neo billing tokens --project tenant-e00abc --from 2026-11-01
    """
    answer = _report(context, "GetReport", start, end, project)
    rows = tokens_by_model(answer.lines)
    view = table(
        ["PROJECT", "MODEL", "INPUT", "CACHED INPUT", "OUTPUT", f"COST, {answer.currency}"],
        [[str(value) for value in row.values()] for row in rows],
        right=["INPUT", "CACHED INPUT", "OUTPUT", f"COST, {answer.currency}"],
    )
    show(output, {"items": rows}, view, empty="No tokens were used in that time.")


@app.command()
def models(client: Connected, output: OutputOption = Format.TABLE) -> None:
    """List the models with their prices per million tokens, context, licence and limit.

    Examples:

      neo billing models
    """
    answer = client.call(f"{PRICE_SERVICE}/List", {})
    rows = (
        (
            item.model,
            item.input,
            item.cached_input,
            item.output,
            f"{item.context_length // 1024}k" if item.context_length else "",
            f"{item.tokens_per_minute:,}",
            item.license,
        )
        for item in answer.items
    )
    columns = ["MODEL", "INPUT", "CACHED INPUT", "OUTPUT", "CONTEXT", "TOKENS A MINUTE", "LICENCE"]
    show(
        output,
        contract.to_document(answer),
        table(columns, rows, right=columns[1:6]),
        empty="There are no prices.",
    )


@app.command()
def estimate(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Name of the model; it ends in -fast for that flavour.")],
    input_tokens: Annotated[int, typer.Option("--input", help="Tokens of the prompt.", min=0)] = 0,
    cached: Annotated[int, typer.Option("--cached", help="Cached tokens among them.", min=0)] = 0,
    answer_tokens: Annotated[int, typer.Option("--answer", help="Tokens of the answer.", min=0)] = 0,
    requests: Annotated[int, typer.Option(help="Number of such requests.", min=1)] = 1,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show the exact cost of requests to a model.

    Examples:

      neo billing estimate llama-3.1-70b --input 6000 --answer 2000
      neo billing estimate llama-3.1-8b-fast --input 500 --answer 100 --requests 1000000
    """
    request = {
        "model": model,
        "input_tokens": input_tokens,
        "cached_input_tokens": cached,
        "output_tokens": answer_tokens,
        "requests": requests,
    }
    with connect(profile_of(context)) as client:
        answer = client.call(f"{PRICE_SERVICE}/Estimate", request)
    rows = [(item.sku, f"{item.tokens:,}", item.unit_price, item.cost) for item in answer.items]
    view = table(["SKU", "TOKENS", "PRICE", "COST"], rows, right=["TOKENS", "PRICE", "COST"])
    show(output, contract.to_document(answer), view, empty="There are no prices.")
    if output is Format.TABLE:
        echo(f"\nTotal {answer.cost} {answer.currency}; {answer.cost_per_request} per request")


def tokens_by_model(lines: Iterable[Any]) -> list[JsonObject]:
    """Return exact token counts and costs by project and model."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    costs: dict[tuple[str, str], Decimal | None] = {}
    for line in lines:
        if line.unit == TOKEN_UNIT:
            key = line.parent_id, line.resource_name
            kind = line.sku.rpartition(".")[2]
            counts.setdefault(key, Counter())[kind] += int(Decimal(line.quantity) * 10**6)
            costs[key] = added(costs.get(key, Decimal(0)), line)
    return [
        {
            "project": project,
            "model": model,
            **{kind: found[kind] for kind in TOKEN_KINDS},
            "cost": cost_text(costs[project, model]),
        }
        for (project, model), found in sorted(counts.items())
    ]


def _report(
    context: typer.Context,
    method: str,
    start: str,
    end: str,
    project: str,
    page_token: str = "",
    service: str = SERVICE,
    *,
    by_account: bool = False,
) -> Any:
    profile = profile_of(context)
    window = {"start": parse_date(start)} if start else {}
    window |= {"end": parse_date(end)} if end else {}
    with connect(profile) as client:
        request: JsonObject = {"parent_id": project_id_of(client, profile, project), **window}
        request |= {"page_token": page_token} if page_token else {}
        request |= {"by_account": True} if by_account else {}
        return client.call(f"{service}/{method}", request)


def parse_date(text: str) -> str:
    """Return a date or time in the contract's form; without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text)
        moment = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ClientError(
            "INVALID_ARGUMENT", f"{text!r} is not a date", "Write 2026-11-01, or 2026-11-01T08:00:00"
        ) from error
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _kind(item: Any) -> str:
    return item.resource_kind.rpartition(".")[2]


def _compact(moment: "Timestamp") -> str:
    return f"{contract.to_datetime(moment):%Y%m%dT%H%M%SZ}"


def _time(moment: "Timestamp") -> str:
    return f"{contract.to_datetime(moment):%Y-%m-%d %H:%M}"
