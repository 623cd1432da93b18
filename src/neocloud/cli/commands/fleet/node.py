"""`neo fleet node`: health of nodes, and why one was drained."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neocloud.cli.commands.fleet import node_parts
from neocloud.cli.commands.fleet.node_lookup import (
    SERVICE,
    NodeArgument,
    find,
    is_host,
    name_of,
    place_of,
    reasons,
    waits_for,
)
from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, OutputOption, fields_table, say, show, table
from neocloud.cli.progress import duration
from neocloud.cli.resources.lookup import Connected
from neocloud.cli.resources.viewed import ListView, list_all
from neocloud.core import contract
from neocloud.core.json_values import is_list
from neocloud.fleet.nodes.events import threshold_in_words

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from neocloud.messages.neocloud.fleet.v1 import Node, NodeCertificate

CERTIFICATES = "neocloud.fleet.v1.CertificateService"
MOMENTS = ("deadline", "valid_until")
"""Fields of events that are times, beside their own."""
app = command_group(
    """Health of nodes: hosts, and workers of Slurm clusters with --auto-repair. For operators of the cloud.

Examples:

  neo fleet node list
  neo fleet node get bank/worker-0
  neo fleet node events bank/worker-0
  neo fleet node certificates
  neo fleet node drain bank/worker-0 "swap the cable"
  neo fleet node release bank/worker-0
  neo fleet node move bank/worker-0 debug "runs the maker's diagnosis"
  neo fleet node inventory bank/worker-0 --changes
  neo fleet node update bank/worker-0 --label team=vision
"""
)
app.command()(node_parts.inventory)
app.command()(node_parts.update)
drain_app, release_app = command_group(), command_group()


def _list_view() -> ListView:
    return ListView(
        {
            "NODE": name_of,
            "KIND": lambda node: "host" if is_host(node) else "worker",
            "PHASE": lambda node: node.phase,
            "JOB": lambda node: node.job or "-",
            "DRAINED BY": _held_by,
            "WHY": _why,
        },
        empty="No node is watched."
        " Watch the workers of a new cluster: neo slurm cluster create NAME --auto-repair",
    )


list_all(
    app,
    SERVICE,
    _list_view,
    "List nodes with their phase, active faults and drains."
    "\n\nExamples:\n\n  neo fleet node list\n  neo fleet node list --output json",
)


@app.command()
def get(client: Connected, node: NodeArgument, output: OutputOption = Format.TABLE) -> None:
    """Show a node, why it was drained the last time, and how long each step took.

    Examples:

      neo fleet node get bank/worker-0
    """
    found = find(client, node)
    show(output, contract.to_document(found), fields_table(_fields(found)))


@app.command()
def events(
    client: Connected,
    node: NodeArgument,
    limit: Annotated[int, typer.Option(min=1, help="Number of the newest events.")] = 50,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show the events of a node, in the order in which they were recorded. Events are only ever appended.

    Examples:

      neo fleet node events bank/worker-0
      neo fleet node events bank/worker-0 --limit 500 --output json
    """
    found = list(client.list_all(f"{SERVICE}/ListEvents", {"id": find(client, node).id}))[-limit:]
    documents = [{"position": each.position, **json.loads(each.json)} for each in found]
    rows = ((_moment(each["at"]), each["type"], _details(each)) for each in documents)
    show(output, documents, table(["AT, UTC", "EVENT", "DETAILS"], rows), empty="Nothing has happened to it.")


def _certificates_view() -> ListView:
    return ListView(
        {
            "NODE": _name_of_certified,
            "SUITE": lambda item: item.certificate.suite,
            "BOOT": lambda item: item.certificate.boot,
            "ISSUED": lambda item: _time(item.certificate.issued_at),
            "UNTIL": lambda item: _time(item.certificate.valid_until),
            "VALID": lambda item: "yes" if item.is_valid else "no",
        },
        empty="No node has passed its checks since its last start or drain. See: neo fleet node list",
    )


list_all(
    app,
    CERTIFICATES,
    _certificates_view,
    "List the proofs that nodes passed their checks since their last start or drain, and until when."
    "\n\nExamples:\n\n  neo fleet node certificates\n  neo fleet node certificates --output json",
    name="certificates",
)


@drain_app.command()
@app.command()
def drain(
    client: Connected,
    node: NodeArgument,
    reason: Annotated[str, typer.Argument(help="Why; users of the node read it.")],
) -> None:
    """Keep new work from a node until you release it. Nothing that runs is ended.

    On a host that is drained, no virtual machine, replica or cluster is started, and its workers take no new
    jobs.

    Examples:

      neo fleet node drain bank/worker-0 "swap the cable"
      neo fleet drain gpu-host-1 "new firmware"
    """
    found = find(client, node)
    client.call(f"{SERVICE}/Drain", {"id": found.id, "reason": reason})
    what = "starts nothing new" if is_host(found) else "takes no new jobs"
    say(f"{name_of(found)} {what}. Release it: neo fleet node release {name_of(found)}")


@release_app.command()
@app.command()
def release(client: Connected, node: NodeArgument) -> None:
    """End your own drain of a node, or have a node verified again that waits in triage.

    A worker takes jobs once it has passed its checks, a host new work at once unless a fault had drained it.

    Examples:

      neo fleet node release bank/worker-0
      neo fleet release gpu-host-1
    """
    found = find(client, node)
    client.call(f"{SERVICE}/Release", {"id": found.id})
    what = "is released" if is_host(found) else "returns to service once it is verified"
    say(f"{name_of(found)} {what}. See: neo fleet node get {name_of(found)}")


@app.command()
def move(
    client: Connected,
    node: NodeArgument,
    phase: Annotated[str, typer.Argument(help="Phase: triage, debug, rma_out, rma_returned, retired.")],
    reason: Annotated[str, typer.Argument(help="Why; it is kept with your name in the node's events.")],
) -> None:
    """Move a node that is out of service by hand: to debug, to its maker and back, or out of the fleet.

    A node that is drained or in triage can be moved. No move leads into service: release it from triage or
    rma_returned, and it is verified. A retired node does not come back under this name.

    Examples:

      neo fleet node move bank/worker-0 debug "runs the maker's diagnosis"
      neo fleet node move gpu-host-1 rma_out "case 4711"
      neo fleet node move gpu-host-1 rma_returned "new board"
      neo fleet node move bank/worker-0 retired "sold"
    """
    found = find(client, node)
    client.call(f"{SERVICE}/Move", {"id": found.id, "phase": phase, "reason": reason})
    say(f"{name_of(found)} is in {phase}. See: neo fleet node events {name_of(found)}")


def _held_by(node: "Node") -> str:
    return ", ".join(hold.owner for hold in node.holds) or "-"


def _why(node: "Node") -> str:
    if node.problem:
        return f"not seen: {node.problem}"
    faults = [f"{fault.check}: {fault.sample}" for fault in node.faults]
    why = [each for each in reasons(node) if not each.startswith(tuple(faults))]
    return "; ".join(filter(None, (waits_for(node), *faults, *why, node.advice))) or "-"


def _fields(node: "Node") -> Iterator[tuple[str, object]]:
    yield "Node", f"{name_of(node)} ({node.id})"
    yield "Phase", f"{node.phase} since {_time(node.phase_since)}"
    if is_host(node):
        yield "Takes new work", "no" if node.advice else "yes"
    else:
        yield "Takes new jobs", "yes" if node.is_schedulable else "no"
    if node.advice:
        yield "Meanwhile", node.advice
    if node.problem:
        yield "Not seen", node.problem
    if node.reserved_for:
        yield "Takes the place of", node.reserved_for
    if node.job:
        yield "Job", f"{node.job} of {node.tenant_id}"
    for hold in node.holds:
        yield f"Drained by {hold.owner}", f"{hold.evidence}, since {_time(hold.since)}"
    for fault in node.faults:
        wanted = threshold_in_words(fault.threshold)
        yield f"Fault: {fault.check}", f"{fault.status}: {fault.sample} ({wanted})"
        yield "  evidence", f"{fault.id}, said {fault.source}, {_time(fault.at)}"
    if waits := waits_for(node):
        yield "Waits", waits
    if node.HasField("certificate"):
        of = node.certificate
        yield "Verified", f"{_time(of.issued_at)} ({of.suite}), until {_time(of.valid_until)}, boot {of.boot}"
    else:
        yield "Verified", "not since its last start or drain"
    yield from _described(node)
    if node.HasField("last_incident"):
        yield from _incident(node.last_incident)


def _described(node: "Node") -> Iterator[tuple[str, object]]:
    if node.labels:
        yield "Labels", ", ".join(f"{key}={value}" for key, value in sorted(node.labels.items()))
    place = ((name, getattr(node.topology, name)) for name in ("rack", "leaf", "spine", "nvlink_domain"))
    if known := [f"{name.replace('_', ' ')} {value}" for name, value in place if value]:
        yield "Place", ", ".join(known)
    if not node.HasField("inventory"):
        return
    said = "by the agent of its host" if node.inventory.reader == "host" else "by the agent in its pod"
    yield "Parts", f"{len(node.inventory.parts)}, said {said}, {_time(node.inventory.at)}"
    if node.inventory.simulated:
        yield "  simulated", node.inventory.simulated
    for part in node.inventory.parts:
        told = (part.model, f"serial {part.serial or '-'}", f"firmware {part.firmware or '-'}")
        also = [f"also in {', '.join(part.also_in)}"] if part.also_in else []
        yield f"  {part.kind} {part.slot}", ", ".join(each for each in (*told, *also) if each)


def _incident(incident: Any) -> Iterator[tuple[str, object]]:
    yield "Last drained", _time(incident.decided_at)
    yield "  because", incident.reason
    yield "  evidence", incident.evidence
    began = incident.detected_at.ToNanoseconds()
    steps = (
        *(("detected", "detected_at"), ("decided", "decided_at"), ("no job left", "drained_at")),
        *(("spare reserved", "reserved_at"), ("spare attached", "attached_at"), ("spare ready", "ready_at")),
        ("verified again", "repaired_at"),
    )
    for label, field in steps:
        if incident.HasField(field):
            after = duration((getattr(incident, field).ToNanoseconds() - began) / 1e9)
            spare = f", {incident.spare}" if label == "spare reserved" else ""
            yield f"  {label}", f"after {after}{spare}"
    if not incident.spare:
        yield "  replaced by", "no spare was ready"
    if incident.credited_seconds:
        yield "  not charged", f"{duration(incident.credited_seconds)}, see: neo billing credits"


def _time(at: "Timestamp") -> str:
    return f"{at.ToDatetime():%Y-%m-%d %H:%M:%S} UTC"


def _moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def _details(event: dict[str, Any]) -> str:
    if event["type"] == "Verdict":
        said = f"{event['sample']} ({threshold_in_words(event['threshold'])})"
        return f"{event['check']} {event['status']}: {said}, {event['id']}"
    left_out = {"position", "type", "at", "node", "boot", "version", "source", "scope"}
    known = {name: value for name, value in event.items() if name not in left_out and value != ""}
    return ", ".join(f"{name}={_detail(name, value)}" for name, value in known.items())


def _detail(name: str, value: object) -> object:
    if name in MOMENTS and isinstance(value, int | float):
        return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%S}"
    return len(value) if is_list(value) else value


def _name_of_certified(item: "NodeCertificate") -> str:
    return place_of(item.cluster_name or item.cluster_id, item.node)
