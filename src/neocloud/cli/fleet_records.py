"""Reads from a cloud the records that its scorecard is made of. For operators of the cloud."""

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from neocloud.cli.resources.lookup import tenant_id_of
from neocloud.client.connection import Client
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile
from neocloud.core import contract
from neocloud.fleet.cloud_evidence import OF_DASHBOARDS, CloudFacts, IncidentFacts, NodeFacts

FLEET = "neocloud.fleet.v1"
METRICS = "neocloud.monitoring.v1.MetricsService/ReadAll"
FLAPS = 'neocloud_node_reading{check=~"ib_link_downed|carrier_changes"}'
MEASURED = frozenset({"pass", "fail"})
RESTARTS = frozenset({"reboot", "power_cycle"})
TICKETS = "BreakFixService/ListEventsAsOperator"


def read_records(client: Client, profile: Profile) -> CloudFacts:
    """Return what the cloud has on record. Raises ClientError, but not for a store of metrics that does not
    answer."""
    nodes = list(client.list_all(f"{FLEET}.NodeService/List"))
    health = {each.id: each for each in client.list_all(f"{FLEET}.HealthCheckService/ListNodes")}
    incidents = [_incident(each) for each in client.list_all(f"{FLEET}.IncidentService/List")]
    parent = {"parent_id": tenant_id_of(client, profile, "")}
    windows = client.list_all(f"{FLEET}.MaintenanceWindowService/List", parent)
    clusters = sorted({node.cluster_id for node in nodes if node.cluster_id})  # hosts have none
    events = [client.call(f"{FLEET}.{TICKETS}", {"cluster_id": each, "limit": 500}) for each in clusters]
    tickets = [_at(each, "at") for found in events for each in found.items if "TICKET" in _type(each)]
    try:
        series, why = _series(client), ""
    except ClientError as error:
        series, why = None, error.message
    return CloudFacts(
        nodes=[_node(each, health.get(each.id)) for each in nodes],
        incidents=incidents,
        windows=[contract.to_datetime(each.metadata.created_at) for each in windows],
        tickets=[each for each in tickets if each is not None],
        series=series,
        no_series=why,
    )


def _node(node: Any, health: Any) -> NodeFacts:
    verified_at = _at(node.certificate, "issued_at") if node.HasField("certificate") else None
    is_host = type(node).Kind.Name(node.kind) == "HOST"
    if health is None:
        # The parts of a host are told by its agent, which has answered then.
        agent = "pass" if is_host and node.inventory.parts and not node.problem else ""
        return NodeFacts(node.name, node.is_spare, is_host, verified_at, node.problem, agent)
    ran = {each.check: _at(each, "at") for each in health.results if each.status in MEASURED}
    return NodeFacts(
        name=node.name,
        is_spare=node.is_spare,
        verified_at=verified_at,
        problem=node.problem,
        agent=health.agent,
        agent_seconds=health.agent_interval_seconds,
        checked_at=_at(health, "tested_at"),
        is_covered=health.is_covered,
        ran={check: at for check, at in ran.items() if at is not None},
    )


def _incident(found: Any) -> IncidentFacts:
    steps = [each.what for each in found.steps]
    return IncidentFacts(
        node=found.node,
        detected_at=contract.to_datetime(found.summary.detected_at),
        ready_at=_at(found.summary, "ready_at"),
        ended_at=_at(found, "ended_at"),
        was_restarted=any(each in RESTARTS for each in steps),
        needed_people=any(each.startswith("moved to") for each in steps),
        credited_seconds=found.summary.credited_seconds,
    )


def _series(client: Client) -> list[str]:
    """Return which of the dashboards' series the store of metrics has now. Raises ClientError."""
    names = "|".join(name for name in OF_DASHBOARDS if name != "neocloud_node_reading")
    found = list(_names(client, f'count by (__name__) ({{__name__=~"{names}"}})'))
    return [*found, *_names(client, f"count by (__name__) ({FLAPS})")]


def _names(client: Client, query: str) -> Iterable[str]:
    answer = client.call(METRICS, {"path": "query", "query": urlencode({"query": query})})
    try:
        return [each["metric"].get("__name__", "") for each in json.loads(answer.body)["data"]["result"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ClientError("UNAVAILABLE", "its answer is none of Prometheus's API") from None


def _type(event: Any) -> str:
    return type(event).Type.Name(event.type)


def _at(message: Any, field: str) -> datetime | None:
    return contract.to_datetime(getattr(message, field)) if message.HasField(field) else None
