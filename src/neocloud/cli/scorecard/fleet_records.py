"""Reads from a cloud the records that its scorecard is made of. For operators of the cloud."""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from neocloud.cli.resources.lookup import tenant_id_of
from neocloud.cli.scorecard.cloud_evidence import OF_DASHBOARDS
from neocloud.cli.scorecard.cloud_facts import (
    CheckResult,
    CloudFacts,
    IncidentFacts,
    NodeFacts,
    Records,
    ReliabilityFacts,
)
from neocloud.cli.scorecard.records_reader import RecordsReader
from neocloud.cli.scorecard.service_records import at_of, read_services
from neocloud.client.connection import Client
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile
from neocloud.core import contract
from neocloud.fleet.nodes.incidents import TICKET_EVIDENCE

FLEET = "neocloud.fleet.v1"
METRICS = "neocloud.monitoring.v1.MetricsService/ReadAll"
FLAPS = 'neocloud_node_reading{check=~"ib_link_downed|carrier_changes"}'
MEASURED = frozenset({"pass", "fail"})
RESTARTS = frozenset({"reboot", "power_cycle"})
OF_MOUNTS = frozenset({"mount_missing", "mount_read_only"})
TICKETS = "BreakFixService/ListEventsAsOperator"
MOST_VERDICTS = 1000
MOST_CLUSTERS = 20
"""Clusters whose repair tickets are read."""


def read_records(client: Client, profile: Profile) -> CloudFacts:
    """Return what the cloud has on record. Raises ClientError where no cloud answers, or no account is signed
    in; where some records cannot be read, the facts say why.
    """
    reader = RecordsReader(client)
    found = reader.list(Records.NODES, f"{FLEET}.NodeService/List")
    checks = reader.list(Records.CHECKS, f"{FLEET}.HealthCheckService/ListNodes")
    health = {each.id: each for each in checks}
    nodes = [_node(each, health.get(each.id)) for each in found]
    verdicts = reader.list(Records.VERDICTS, f"{FLEET}.VerdictService/List", most=MOST_VERDICTS)
    incidents = reader.list(Records.INCIDENTS, f"{FLEET}.IncidentService/List")
    tenant_id = tenant_id_of(client, profile, "")
    windows = reader.list(Records.WINDOWS, f"{FLEET}.MaintenanceWindowService/List", {"parent_id": tenant_id})
    return CloudFacts(
        nodes=nodes,
        incidents=[_incident(each) for each in incidents],
        windows=[contract.to_datetime(each.metadata.created_at) for each in windows],
        tickets=_tickets(reader, sorted({node.cluster_id for node in nodes if node.cluster_id})),
        series=reader.read(Records.METRICS, lambda: _series(reader), None),
        mount_failures=[at for each in verdicts if (at := _mount_failure(each)) is not None],
        reliability=reader.read(Records.RELIABILITY, lambda: _reliability(reader), None),
        unread=reader.unread,
        cut=reader.cut,
        **read_services(reader, tenant_id, [(each.cluster_id, each.job) for each in found if each.job]),
    )


def _node(node: Any, health: Any) -> NodeFacts:
    is_host = contract.enum_name(node, "kind") == "HOST"
    agent = health.agent if health else ""
    if health is None and is_host and node.inventory.parts and not node.problem:
        agent = "pass"  # the parts of a host are reported by its agent, which has answered then
    results = health.results if health else ()
    ran = {each.check: at_of(each, "at") for each in results if each.status in MEASURED}
    return NodeFacts(
        name=node.name,
        is_spare=node.is_spare,
        is_host=is_host,
        verified_at=at_of(node.certificate, "issued_at") if node.HasField("certificate") else None,
        problem=node.problem,
        agent=agent,
        agent_seconds=health.agent_interval_seconds if health else 0.0,
        checked_at=at_of(health, "tested_at") if health else None,
        is_covered=health.is_covered if health else False,
        ran={check: at for check, at in ran.items() if at is not None},
        results={each.check: CheckResult(each.status, each.sample, at_of(each, "at")) for each in results},
        cluster_id=node.cluster_id,
        gpus=sum(part.kind == "gpu" for part in node.inventory.parts),
        is_simulated=bool(node.inventory.simulated),
        has_mount_fault=any(each.check in OF_MOUNTS for each in node.faults),
    )


def _incident(found: Any) -> IncidentFacts:
    steps = [each.what for each in found.steps]
    return IncidentFacts(
        node=found.node,
        detected_at=contract.to_datetime(found.summary.detected_at),
        ready_at=at_of(found.summary, "ready_at"),
        ended_at=at_of(found, "ended_at"),
        was_restarted=any(each in RESTARTS for each in steps),
        needed_people=any(each.startswith("moved to") for each in steps),
        is_asked_for=found.summary.evidence.startswith(TICKET_EVIDENCE),
        credited_seconds=found.summary.credited_seconds,
    )


def _mount_failure(found: Any) -> datetime | None:
    """Return when a mount failed, if this verdict says so and was not refuted."""
    if found.verdict.check not in OF_MOUNTS:
        return None
    if found.HasField("judgement") and not found.judgement.is_confirmed:
        return None
    return at_of(found.verdict, "at")


def _tickets(reader: RecordsReader, cluster_ids: Sequence[str]) -> list[datetime]:
    if len(cluster_ids) > MOST_CLUSTERS:
        reader.cut.add(Records.TICKETS)
    path = f"{FLEET}.{TICKETS}"

    def read() -> list[Any]:
        asked = [{"cluster_id": each, "limit": 500} for each in cluster_ids[:MOST_CLUSTERS]]
        return [event for request in asked for event in reader.call(path, request).items]

    nothing: list[Any] = []
    events = [each for each in reader.read(Records.TICKETS, read, nothing) if "TICKET" in _type(each)]
    return [at for each in events if (at := at_of(each, "at")) is not None]


def _reliability(reader: RecordsReader) -> ReliabilityFacts:
    found = reader.call(f"{FLEET}.IncidentService/GetReliability", {})
    availability = found.availability if found.HasField("availability") else None
    end = contract.to_datetime(found.end)
    return ReliabilityFacts(end, found.node_days, sum(found.faults.values()), availability)


def _series(reader: RecordsReader) -> list[str]:
    """Return which of the dashboards' series the store of metrics has now. Raises ClientError."""
    names = "|".join(name for name in OF_DASHBOARDS if name != "neocloud_node_reading")
    found = list(_names(reader, f'count by (__name__) ({{__name__=~"{names}"}})'))
    return [*found, *_names(reader, f"count by (__name__) ({FLAPS})")]


def _names(reader: RecordsReader, query: str) -> Iterable[str]:
    answer = reader.call(METRICS, {"path": "query", "query": urlencode({"query": query})})
    try:
        return [each["metric"].get("__name__", "") for each in json.loads(answer.body)["data"]["result"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ClientError("UNAVAILABLE", "its answer is not from Prometheus's API") from None


def _type(event: Any) -> str:
    return contract.enum_name(event, "type")
