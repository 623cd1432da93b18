"""`neo top`: what runs in the project and how busy it is, on one screen that is refreshed."""

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, RenderableType
from rich.live import Live

from neocloud.cli import live_screen
from neocloud.cli.commands.slurm.job import ACTIVE
from neocloud.cli.commands.slurm.job import JOBS as SLURM_JOBS
from neocloud.cli.lazy import command_group
from neocloud.cli.machine.home import Home, RunningServer
from neocloud.cli.machine.server_process import get_json, get_text
from neocloud.cli.output import Format, JsonObject, OutputOption, View, console, fields_table, show, table
from neocloud.cli.progress import duration
from neocloud.cli.resources.lookup import (
    CLUSTERS,
    DEPLOYMENTS,
    INSTANCES,
    NOT_OFFERED,
    Cloud,
    ProjectClient,
    list_in,
    refusal_note,
    state_of,
)
from neocloud.client.errors import ClientError
from neocloud.core import contract
from neocloud.core.json_values import as_object, is_object
from neocloud.messages.nebius.compute.v1 import Instance
from neocloud.messages.neocloud.inference.v1 import Deployment, Replica
from neocloud.messages.neocloud.slurm.v1 import Cluster

SAMPLE_SECONDS = 1.0
"""Between the two readings of the gateway's counters where only one screen is printed."""
REQUESTS = "neocloud_gateway_requests_total"
_NO_JOBS = frozenset({*NOT_OFFERED, *live_screen.PASSING, "FAILED_PRECONDITION", "NOT_FOUND"})
"""Codes that a cluster without a running Slurm, or one that was just deleted, answers for its jobs."""
_KINDS = (("Slurm cluster", CLUSTERS), ("machine", INSTANCES), ("deployment", DEPLOYMENTS))
_MEMORY = Path("/proc/meminfo")

app = command_group()


def number(value: float) -> float:
    if math.isnan(value):
        raise typer.BadParameter("nan is not a number of seconds")
    return value


IntervalOption = Annotated[
    float,
    typer.Option(
        min=1,
        max=live_screen.LONGEST_INTERVAL,
        callback=number,
        metavar="SECONDS",
        help="Time between refreshes.",
    ),
]
OnceOption = Annotated[bool, typer.Option("--once", help="Print one screen and end.")]


@dataclass(frozen=True)
class Answered:
    """The requests that the gateway had answered at a moment, by the name of the model."""

    at: float
    counts: Mapping[str, float]


@app.command()
def top(
    cloud: Cloud, interval: IntervalOption = 2, once: OnceOption = False, output: OutputOption = Format.TABLE
) -> None:
    """Show what runs and how busy it is: machines, Slurm nodes and jobs, deployments.

    Refreshed until Ctrl-C; printed once with --once, with --output json or yaml, and without a terminal. On
    the cloud's own machine the operator, with the profile of `neo up`, also sees the host's load and memory,
    and the requests per second of deployments, which count all models of that name in the cloud.

    Examples:

      neo top
      neo top --once
      neo top -o json
    """
    screen = console()
    if output is Format.TABLE and not once and screen.is_terminal:
        with Live(console=screen, screen=True, auto_refresh=False) as live:
            refresh(cloud, interval, live)
        return
    document = _single(cloud)
    if output is not Format.TABLE:
        show(output, document, fields_table(()))
        return
    live_screen.print_once(_heading(document), document["notes"], _views(document))


def _single(cloud: ProjectClient) -> JsonObject:
    """Return one screen; the gateway's counters are read twice for it if something is served."""
    before = _answered(cloud)
    document = document_of(cloud, before, None)
    if before is None or not document["deployments"]:
        return document
    cloud.client.sleep(max(0.0, SAMPLE_SECONDS - (time.monotonic() - before.at)))
    return document_of(cloud, before, _answered(cloud))


def refresh(cloud: ProjectClient, interval: float, live: Live) -> None:
    """Draw the screen again and again until Ctrl-C. An error that may pass does not end it."""
    before = None

    def read() -> JsonObject:
        nonlocal before
        now = _answered(cloud)
        document = document_of(cloud, before, now)
        before = now
        return document

    live_screen.repeat(
        read,
        lambda document: live.update(drawn(document, live.console), refresh=True),
        lambda: cloud.client.sleep(interval),
    )


def document_of(cloud: ProjectClient, before: Answered | None, now: Answered | None) -> JsonObject:
    listed, refused = list_in(cloud, _KINDS)
    clusters = listed.get(CLUSTERS, ())
    jobs, notes = _jobs(cloud, clusters)
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "project_id": cloud.project,
        "host": host_of(cloud),
        "machines": [_machine(item) for item in listed.get(INSTANCES, ())],
        "clusters": [
            {"name": item.metadata.name, "id": item.metadata.id, "state": state_of(item)} for item in clusters
        ],
        "nodes": [
            {"cluster": cluster.metadata.name, **contract.to_document(node)}
            for cluster in clusters
            for node in cluster.status.nodes
        ],
        "jobs": jobs,
        "deployments": [_deployment(item, before, now) for item in listed.get(DEPLOYMENTS, ())],
        "notes": [refusal_note(refused), *notes] if refused else notes,
    }


def _jobs(cloud: ProjectClient, clusters: Sequence[Cluster]) -> tuple[list[JsonObject], list[str]]:
    """Return the jobs that wait or run, and why those of a cluster are missing."""
    found: list[JsonObject] = []
    notes: list[str] = []
    for cluster in clusters:
        name = cluster.metadata.name
        try:
            request = {"cluster_id": cluster.metadata.id, "active_only": True}
            jobs = list(cloud.client.list_all(f"{SLURM_JOBS}/List", request))
        except ClientError as error:
            if error.code not in _NO_JOBS:
                raise
            notes.append(f"No jobs of {name} ({state_of(cluster)}) are shown: {error}")
            continue
        # A cloud of an earlier release lists all jobs.
        found += [{"cluster": name, **contract.to_document(job)} for job in jobs if job.state in ACTIVE]
    return found, notes


def _machine(item: Instance) -> JsonObject:
    addresses = [
        interface.public_ip_address.address or interface.ip_address.address
        for interface in item.status.network_interfaces
    ]
    return {
        "name": item.metadata.name,
        "id": item.metadata.id,
        "state": state_of(item),
        "platform": item.spec.resources.platform,
        "preset": item.spec.resources.preset,
        "addresses": [address.partition("/")[0] for address in addresses if address],
    }


def _deployment(item: Deployment, before: Answered | None, now: Answered | None) -> JsonObject:
    names = list(item.status.served_names)
    return {
        "name": item.metadata.name,
        "id": item.metadata.id,
        "state": state_of(item),
        "replicas_ready": sum(replica.state == Replica.READY for replica in item.status.replicas),
        "replicas_wanted": item.status.wanted_replicas,
        "served_names": names,
        "requests_per_second": rate(names, before, now),
    }


def rate(names: Sequence[str], before: Answered | None, now: Answered | None) -> float | None:
    """Return the requests per second of these models; None where it is not known."""
    if before is None or now is None or now.at <= before.at:
        return None
    count = sum(now.counts.get(name, 0.0) - before.counts.get(name, 0.0) for name in names)
    return round(count / (now.at - before.at), 2) if count >= 0 else None  # less: the gateway was restarted


def server_of(cloud: ProjectClient) -> RunningServer | None:
    """Return the server of a cloud on this machine."""
    return Home(Path(cloud.profile.home)).server() if cloud.profile.home else None


def _answered(cloud: ProjectClient) -> Answered | None:
    """Read the gateway's counters, which only operators may read, on its own machine."""
    server = server_of(cloud)
    if server is None or not server.gateway or server.gateway.startswith("https:"):
        return None
    text = get_text(server.gateway, "/metrics", cloud.client.tokens.token())
    if text is None:
        return None
    counts: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == REQUESTS:
                name = sample.labels["model"]
                counts[name] = counts.get(name, 0.0) + sample.value
    return Answered(time.monotonic(), counts)


def host_of(cloud: ProjectClient) -> JsonObject | None:
    """Return size and load of the host; None if it is not this machine, or the caller may not see it."""
    server = server_of(cloud)
    if server is None or Home(Path(cloud.profile.home)).settings().emulator:
        return None
    status = get_json(server.http, "/status", cloud.client.tokens.token())
    engine = as_object(status).get("engine")
    if not is_object(engine):
        return None
    lines = (line.split() for line in _MEMORY.read_text().splitlines())
    kibibytes = {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}
    return {
        "cpus": engine.get("cpus", 0),
        "load": round(os.getloadavg()[0], 2),
        "memory_mib": kibibytes["MemTotal:"] // 1024,
        "memory_used_mib": (kibibytes["MemTotal:"] - kibibytes["MemAvailable:"]) // 1024,
    }


def _heading(document: JsonObject) -> list[str]:
    lines = [f"Project {document['project_id']} at {document['at'][11:19]} UTC"]
    host = document["host"]
    if host is not None:
        used, total = host["memory_used_mib"] / 1024, host["memory_mib"] / 1024
        lines.append(
            f"Host: {host['cpus']} CPUs, load {host['load']}; memory {used:.1f} of {total:.1f} GiB in use"
        )
    if not any(document[kind] for kind in ("machines", "clusters", "deployments", "notes")):
        lines.append("No machine, cluster or deployment runs here.")
    return lines


def _views(document: JsonObject) -> list[View]:
    """Return a table for each kind that there is."""
    machines = table(
        ["MACHINE", "STATE", "PRESET", "PLATFORM", "ADDRESS"],
        (
            (item["name"], item["state"], item["preset"], item["platform"], ", ".join(item["addresses"]))
            for item in document["machines"]
        ),
    )
    nodes = table(
        ["NODE", "CLUSTER", "STATE", "ADDRESS", "REASON"],
        (
            (item["name"], item["cluster"], _node_state(item), item.get("address"), item.get("reason"))
            for item in document["nodes"]
        ),
    )
    jobs = table(
        ["JOB", "CLUSTER", "NAME", "USER", "STATE", "TIME", "NODES OR REASON"],
        (
            (
                item["id"],
                item["cluster"],
                item.get("name"),
                item.get("user"),
                item.get("state"),
                _elapsed(item, document["at"]),
                ",".join(item.get("nodes") or ()) or item.get("reason"),
            )
            for item in document["jobs"]
        ),
        right=["JOB", "TIME"],
    )
    deployments = table(
        ["DEPLOYMENT", "STATE", "READY", "REQUESTS/S", "CALLED"],
        (
            (
                item["name"],
                item["state"],
                f"{item['replicas_ready']}/{item['replicas_wanted']}",
                item["requests_per_second"],
                ", ".join(item["served_names"]),
            )
            for item in document["deployments"]
        ),
        right=["REQUESTS/S"],
    )
    return [view for view in (machines, nodes, jobs, deployments) if view.rows]


def _node_state(node: JsonObject) -> str:
    """Return Slurm's states of a node, without the one that all our nodes have."""
    states = str(node.get("slurm_state", "")).split("+")
    return "+".join(state for state in states if state != "DYNAMIC_NORM")


def _elapsed(job: JsonObject, now: str) -> str:
    if not job.get("started_at"):
        return ""
    seconds = (datetime.fromisoformat(now) - datetime.fromisoformat(job["started_at"])).total_seconds()
    return duration(max(0.0, seconds))


def drawn(document: JsonObject, screen: Console) -> RenderableType:
    return live_screen.drawn(_heading(document), document["notes"], _views(document), screen)
