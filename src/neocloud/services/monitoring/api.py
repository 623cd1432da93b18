"""Prometheus's HTTP API for queries, of one project for its people and of all for operators."""

from neocloud.core import contract
from neocloud.core.service import Call, HttpRoute, Method
from neocloud.messages.neocloud.monitoring.v1 import (
    MetricsResponse,
    ReadAllMetricsFormRequest,
    ReadAllMetricsRequest,
    ReadMetricsFormRequest,
    ReadMetricsRequest,
)
from neocloud.services.iam.types import is_project, operators_tenant_id
from neocloud.services.monitoring.history import MetricsHistory

PERMISSION = "monitoring.metrics.list"
OPERATORS_PERMISSION = "monitoring.allMetrics.list"
_SERVICE = "neocloud.monitoring.v1.MetricsService"


async def read(call: Call, request: ReadMetricsRequest) -> MetricsResponse:
    return await _of_project(call, request, b"")


async def read_form(call: Call, request: ReadMetricsFormRequest) -> MetricsResponse:
    return await _of_project(call, request, request.body)


async def read_all(call: Call, request: ReadAllMetricsRequest) -> MetricsResponse:
    return await _of_all(call, request, b"")


async def read_all_form(call: Call, request: ReadAllMetricsFormRequest) -> MetricsResponse:
    return await _of_all(call, request, request.body)


async def _of_project(
    call: Call, request: ReadMetricsRequest | ReadMetricsFormRequest, body: bytes
) -> MetricsResponse:
    row = await call.dependencies.store.read(lambda tx: tx.get(request.project_id))
    if row is None or not is_project(row):
        raise contract.bad_field("project_id", "is not the id of a project")
    history = call.dependencies.provided.get(MetricsHistory)
    status, answer = await history.read(request.path, request.query, body, row.id)
    return MetricsResponse(status=status, body=answer)


async def _of_all(
    call: Call, request: ReadAllMetricsRequest | ReadAllMetricsFormRequest, body: bytes
) -> MetricsResponse:
    operators = await call.dependencies.store.read(operators_tenant_id)
    if call.subject is None or call.subject.tenant_id != operators:
        text = "Only an operator of this cloud can read the metrics of all projects."
        raise contract.permission_denied(OPERATORS_PERMISSION, "", text)
    history = call.dependencies.provided.get(MetricsHistory)
    status, answer = await history.read(request.path, request.query, body, None)
    return MetricsResponse(status=status, body=answer)


def _project(request: ReadMetricsRequest | ReadMetricsFormRequest) -> str:
    return request.project_id


METHODS = (
    Method(f"{_SERVICE}/Read", read, PERMISSION, _project),
    Method(f"{_SERVICE}/ReadForm", read_form, PERMISSION, _project),
    Method(f"{_SERVICE}/ReadAll", read_all, OPERATORS_PERMISSION),
    Method(f"{_SERVICE}/ReadAllForm", read_all_form, OPERATORS_PERMISSION),
)

ROUTES = (
    HttpRoute(
        "/monitoring/projects/{project_id}/api/v1/{path:path}",
        {"GET": f"{_SERVICE}/Read", "POST": f"{_SERVICE}/ReadForm"},
    ),
    HttpRoute(
        "/monitoring/api/v1/{path:path}",
        {"GET": f"{_SERVICE}/ReadAll", "POST": f"{_SERVICE}/ReadAllForm"},
    ),
)
"""Clients of Prometheus take `https://CLOUD/monitoring/projects/ID` as its address."""
