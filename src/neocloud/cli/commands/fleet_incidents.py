"""`neo fleet incidents`: why nodes were drained, what was tried, and when it ended."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, OutputOption, fields_table, show, table
from neocloud.cli.progress import duration
from neocloud.cli.target import profile_of
from neocloud.client.connection import connect
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.messages.neocloud.fleet.v1 import FleetIncident

SERVICE = "neocloud.fleet.v1.IncidentService"

app = command_group(
    """Drains of nodes by the controller, from the first sign of a fault to the end. For operators.

Examples:

  neo fleet incidents list
  neo fleet incidents get slurmcluster-e00x/worker-0/3
"""
)


@app.command("list")
def list_incidents(
    context: typer.Context,
    only_open: Annotated[bool, typer.Option("--open", help="Only those that have not ended.")] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """List the drains by the controller, newest first: the node, why, its spare, and whether it has ended.

    Examples:

      neo fleet incidents list
      neo fleet incidents list --open --output json
    """
    with connect(profile_of(context)) as client:
        items = client.list_all(f"{SERVICE}/List")
        found = [each for each in items if not only_open or each.state == "open"]
    rows = (
        (
            each.id,
            _name(each),
            _time(each.summary.decided_at),
            each.summary.reason,
            each.summary.spare or "-",
            _ended(each),
        )
        for each in found
    )
    view = table(["INCIDENT", "NODE", "DRAINED", "WHY", "SPARE", "ENDED"], rows)
    documents = [contract.to_document(each) for each in found]
    show(output, documents, view, empty="The controller has drained no node.")


@app.command()
def get(
    context: typer.Context,
    incident: Annotated[str, typer.Argument(help="The id, as listed.")],
    output: OutputOption = Format.TABLE,
) -> None:
    """Show one drain: the evidence, the spare that took over, each repair and verification, and how it ended.

    Examples:

      neo fleet incidents get slurmcluster-e00x/worker-0/3
    """
    with connect(profile_of(context)) as client:
        found = client.call(f"{SERVICE}/Get", {"id": incident})
    show(output, contract.to_document(found), fields_table(_fields(found)))


def _fields(found: "FleetIncident") -> Iterator[tuple[str, object]]:
    summary = found.summary
    yield "Incident", found.id
    yield "Node", _name(found)
    yield "State", _ended(found)
    yield "Because", summary.reason
    yield "Evidence", summary.evidence
    for label, field in (
        *(("Detected", "detected_at"), ("Decided", "decided_at"), ("No job left", "drained_at")),
        *(("Spare reserved", "reserved_at"), ("Spare attached", "attached_at"), ("Spare ready", "ready_at")),
    ):
        if summary.HasField(field):
            yield label, _time(getattr(summary, field))
    yield "Replaced by", summary.spare or "no spare was ready"
    for step in found.steps:
        yield f"  {step.what}", f"{step.outcome or 'runs'}, {_time(step.at)}"
    if found.HasField("returned_at"):
        yield "In service again", _time(found.returned_at)
    if summary.credited_seconds:
        yield "Not charged", f"{duration(summary.credited_seconds)}, see: neo billing credits"


def _name(found: "FleetIncident") -> str:
    return f"{found.cluster_name or found.cluster_id}/{found.node}"


def _ended(found: "FleetIncident") -> str:
    if not found.HasField("ended_at"):
        return "open"
    seconds = (found.ended_at.ToNanoseconds() - found.summary.decided_at.ToNanoseconds()) / 1e9
    return f"after {duration(seconds)}"


def _time(at: Any) -> str:
    return f"{at.ToDatetime():%Y-%m-%d %H:%M:%S} UTC"
