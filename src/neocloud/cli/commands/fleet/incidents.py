"""`neo fleet incidents`: why nodes were drained, what was tried, and when it ended. `neo fleet reliability`:
how often, and how soon spares took over."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.commands.fleet.node_lookup import cluster_id_of, place_of
from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, OutputOption, fields_table, show, table
from neocloud.cli.progress import duration
from neocloud.cli.resources.lookup import Connected
from neocloud.core import contract

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from neocloud.messages.neocloud.fleet.v1 import FleetIncident, Reliability

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
    client: Connected,
    only_open: Annotated[bool, typer.Option("--open", help="Only those that have not ended.")] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """List the drains by the controller, newest first: the node, why, its spare, and whether it has ended.

    Examples:

      neo fleet incidents list
      neo fleet incidents list --open --output json
    """
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
    client: Connected,
    incident: Annotated[str, typer.Argument(help="The id, as listed.")],
    output: OutputOption = Format.TABLE,
) -> None:
    """Show one drain: the evidence, the spare that took over, each repair and verification, and how it ended.

    Examples:

      neo fleet incidents get slurmcluster-e00x/worker-0/3
    """
    found = client.call(f"{SERVICE}/Get", {"id": incident})
    show(output, contract.to_document(found), fields_table(_fields(found)))


reliability_app = command_group()


@reliability_app.command()
def reliability(
    client: Connected,
    cluster: Annotated[str, typer.Argument(help="Only this cluster: name or id.")] = "",
    days: Annotated[int, typer.Option(min=1, max=60, help="How many days back.")] = 30,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show how reliable workers were: their faults, how soon spares took over, time out of service.

    For operators. A fault is a drain by the controller, except for requested replacements. The interval holds
    if faults are independent. The goodput of jobs is unknown here.

    Examples:

      neo fleet reliability
      neo fleet reliability bank --days 7 --output json
    """
    cluster_id = cluster_id_of(client, cluster) if cluster else ""
    found = client.call(f"{SERVICE}/GetReliability", {"cluster_id": cluster_id, "days": days})
    show(output, contract.to_document(found), fields_table(_figures(found)))


def _figures(found: "Reliability") -> Iterator[tuple[str, object]]:
    yield "From", _time(found.begin)
    yield "To", _time(found.end)
    yield "Workers", found.nodes
    days = found.node_days
    yield "Watched for", f"{days:.1f} node-days" if days >= 1 else _node_time(24 * days)
    faults = ", ".join(f"{count} {check}" for check, count in sorted(found.faults.items()))
    yield "Faults", f"{sum(found.faults.values())}{f' ({faults})' if faults else ''}"
    if 0 < days < 1:  # a rate of less says nothing
        yield "Faults for 1,000 node-days", "not known yet: nodes were watched for less than a node-day"
    elif days:
        rate = found.rate
        interval = f"95% interval {rate.low:.1f} to {rate.high:.1f}"
        yield "Faults for 1,000 node-days", f"{rate.per_1000_node_days:.1f} ({interval})"
    if found.replaced:
        within = f"{found.replaced_within_90_seconds} of {found.replaced} within 90 s"
        took = duration(found.median_replacement_seconds), duration(found.longest_replacement_seconds)
        yield "Spare took over", f"{within}, median {took[0]}, longest {took[1]}"
    for cause, hours in sorted(found.out_of_service_hours.items()):
        yield f"Out of service: {cause}", _node_time(hours)
    if found.HasField("availability"):
        yield "Availability", f"{100 * found.availability:.3f}%"


def _node_time(hours: float) -> str:
    return f"{hours:.2f} node-hours" if hours >= 1 else f"{60 * hours:.2f} node-minutes"


def _fields(found: "FleetIncident") -> Iterator[tuple[str, object]]:
    summary = found.summary
    yield "Incident", found.id
    yield "Node", _name(found)
    yield "State", f"ended {_ended(found)}" if found.HasField("ended_at") else "open"
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
    return place_of(found.cluster_name or found.cluster_id, found.node)


def _ended(found: "FleetIncident") -> str:
    if not found.HasField("ended_at"):
        return "open"
    seconds = (found.ended_at.ToNanoseconds() - found.summary.decided_at.ToNanoseconds()) / 1e9
    return f"after {duration(seconds)}"


def _time(at: "Timestamp") -> str:
    return f"{at.ToDatetime():%Y-%m-%d %H:%M:%S} UTC"
