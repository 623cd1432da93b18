"""`neo fleet top`: all watched nodes, their states and work, and Slurm's queues, on one screen."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, RenderableType
from rich.live import Live

from neocloud.cli import live_screen
from neocloud.cli.commands.fleet.node_lookup import place_of, reasons, waits_for
from neocloud.cli.commands.top import IntervalOption, OnceOption, host_of, server_of
from neocloud.cli.lazy import command_group
from neocloud.cli.machine.server_process import get_text
from neocloud.cli.output import Format, JsonObject, OutputOption, View, console, fields_table, show, table
from neocloud.cli.progress import duration
from neocloud.cli.resources.lookup import Connected, CurrentProfile, ProjectClient
from neocloud.core.json_values import as_object

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from neocloud.messages.neocloud.fleet.v1 import Node

NODES = "neocloud.fleet.v1.NodeService"
NO_QUEUES = (
    "Queues of Slurm are shown on the cloud's own machine, with the profile of `neo up`:"
    " they are read from its /metrics."
)
_TROUBLE = ("suspect", "draining", "drained", "remediating", "verifying", "triage", "debug", "rma_out")
"""Phases in the order in which they are listed, above all others."""
_JOBS, _NODE_STATES = "neocloud_slurm_jobs", "neocloud_slurm_nodes"

app = command_group()


@app.command()
def top(
    client: Connected,
    profile: CurrentProfile,
    interval: IntervalOption = 2,
    once: OnceOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show the nodes of all clusters that are watched: states, jobs, faults, load. For operators.

    Refreshed until Ctrl-C; printed once with --once, with --output json or yaml, and without a terminal.
    Nodes that need somebody come first. On the cloud's own machine, with the profile of `neo up`, it also
    shows the host's load and the queue of each Slurm cluster.

    Examples:

      neo fleet top
      neo fleet top --once
      neo fleet top -o json
    """
    cloud = ProjectClient(client, profile, "")
    screen = console()
    if output is Format.TABLE and not once and screen.is_terminal:
        with Live(console=screen, screen=True, auto_refresh=False) as live:
            live_screen.repeat(
                lambda: document_of(cloud),
                lambda document: live.update(drawn(document, live.console), refresh=True),
                lambda: client.sleep(interval),
            )
        return
    document = document_of(cloud)
    if output is not Format.TABLE:
        show(output, document, fields_table(()))
        return
    live_screen.print_once(_heading(document), document["notes"], _views(document))


def document_of(cloud: ProjectClient) -> JsonObject:
    nodes = [_node(each) for each in cloud.client.list_all(f"{NODES}/List")]
    nodes.sort(key=lambda node: (_rank(node), node["cluster"], node["name"]))
    queues = _queues(cloud)
    known = {node["cluster_id"]: node["cluster"] for node in nodes}
    names = {**known, **{cluster: queue["name"] for cluster, queue in (queues or {}).items()}}
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": host_of(cloud),
        "phases": dict(Counter(node["phase"] for node in nodes)),
        "clusters": [
            _cluster(cluster, name, [node for node in nodes if node["cluster_id"] == cluster], queues)
            for cluster, name in sorted(names.items(), key=lambda item: (item[1], item[0]))
        ],
        "nodes": nodes,
        "notes": [NO_QUEUES] if queues is None else [],
    }


def _rank(node: JsonObject) -> int:
    if node["not_seen"]:
        return -1
    phase = node["phase"]
    return _TROUBLE.index(phase) if phase in _TROUBLE else len(_TROUBLE)


def _node(node: "Node") -> JsonObject:
    return {
        "id": node.id,
        "name": node.name,
        "cluster_id": node.cluster_id,
        "cluster": node.cluster_name or node.cluster_id or "hosts",
        "phase": node.phase,
        "phase_seconds": _age(node.phase_since),
        "is_schedulable": node.is_schedulable,
        "is_spare": node.is_spare,
        "job": node.job,
        "project_id": node.tenant_id,
        "drained_by": [hold.owner for hold in node.holds],
        "faults": [f"{fault.check}: {fault.sample}" for fault in node.faults],
        "reasons": reasons(node),
        "held": waits_for(node),
        "not_seen": node.problem,
        "verified_seconds": _age(node.certificate.issued_at) if node.HasField("certificate") else None,
    }


def _age(at: "Timestamp") -> int:
    return max(0, int(time.time() - at.ToNanoseconds() / 1e9))


def _queues(cloud: ProjectClient) -> Mapping[str, JsonObject] | None:
    """Return jobs and states of nodes of each cluster, as /metrics has them; None where it cannot be read."""
    server = server_of(cloud)
    text = get_text(server.http, "/metrics", cloud.client.tokens.token()) if server else None
    if text is None:
        return None
    found: dict[str, JsonObject] = {}
    for family in text_string_to_metric_families(text):
        if family.name not in (_JOBS, _NODE_STATES):
            continue
        for sample in family.samples:
            labels = sample.labels
            queue = found.setdefault(
                labels["cluster"], {"name": labels["cluster_name"], "jobs": {}, "slurm_nodes": {}}
            )
            part = queue["jobs" if family.name == _JOBS else "slurm_nodes"]
            part[labels["state"]] = int(sample.value)
    return found


def _cluster(
    cluster: str, name: str, nodes: Sequence[JsonObject], queues: Mapping[str, JsonObject] | None
) -> JsonObject:
    queue = (queues or {}).get(cluster)
    states: Mapping[str, int] = queue["slurm_nodes"] if queue else {}
    return {
        "id": cluster,
        "name": name,
        "watched": len(nodes),
        "in_service": sum(node["phase"] == "in_service" for node in nodes),
        "spares": sum(node["is_spare"] for node in nodes),
        "busy": sum(bool(node["job"]) for node in nodes),
        "slurm_nodes": {state: count for state, count in states.items() if count} if queue else None,
        "jobs_running": queue["jobs"].get("running") if queue else None,
        "jobs_pending": queue["jobs"].get("pending") if queue else None,
    }


def _heading(document: JsonObject) -> list[str]:
    nodes, phases = document["nodes"], document["phases"]
    busy = sum(bool(node["job"]) for node in nodes)
    counted = ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items()))
    lines = [f"Fleet at {document['at'][11:19]} UTC: {len(nodes)} nodes watched, {busy} with a job"]
    lines += [f"Phases: {counted}"] if counted else []
    host = document["host"]
    if host is not None:
        used, total = host["memory_used_mib"] / 1024, host["memory_mib"] / 1024
        lines.append(
            f"Host: {host['cpus']} CPUs, load {host['load']}; memory {used:.1f} of {total:.1f} GiB in use"
        )
    if not nodes:
        lines.append("No node is watched. Create a cluster with: neo slurm cluster create --auto-repair")
    return lines


def _views(document: JsonObject) -> list[View]:
    clusters = table(
        ["CLUSTER", "IN SERVICE", "SPARES", "BUSY", "RUNNING", "PENDING", "SLURM'S NODES"],
        (
            (
                each["name"],
                f"{each['in_service']}/{each['watched']}",
                each["spares"],
                each["busy"],
                each["jobs_running"],
                each["jobs_pending"],
                ", ".join(f"{count} {state}" for state, count in as_object(each["slurm_nodes"]).items()),
            )
            for each in document["clusters"]
        ),
        right=["IN SERVICE", "SPARES", "BUSY", "RUNNING", "PENDING"],
    )
    nodes = table(
        ["NODE", "PHASE", "SINCE", "JOB", "VERIFIED", "WHY"],
        (
            (
                place_of(each["cluster"] if each["cluster_id"] else "", each["name"]),
                each["phase"],
                duration(each["phase_seconds"]),
                each["job"],
                "-" if each["verified_seconds"] is None else f"{duration(each['verified_seconds'])} ago",
                _why(each),
            )
            for each in document["nodes"]
        ),
        right=["SINCE"],
    )
    return [view for view in (clusters, nodes) if view.rows]


def _why(node: JsonObject) -> str:
    if node["not_seen"]:
        return f"not seen: {node['not_seen']}"
    drains = zip(node["drained_by"], node["reasons"], strict=True)
    drained = [f"drained by {owner}: {reason}" for owner, reason in drains]
    return "; ".join(filter(None, (node["held"], *node["faults"], *drained)))


def drawn(document: JsonObject, screen: Console) -> RenderableType:
    return live_screen.drawn(_heading(document), document["notes"], _views(document), screen)
