"""Tenants and projects. Version 1 of the API has one message for both, version 2 has two.

Projects of version 2 are served by the verbs of version 1, translated. Tenants are neither created nor
deleted through the API.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from google.protobuf.message import Message

from neocloud.core import contract, wire
from neocloud.core.service import Call, Method, MethodAlias, NewOperation, Write
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.common.v1 import Operation, ResourceMetadata
from neocloud.messages.nebius.iam import v1
from neocloud.messages.nebius.iam.v1 import Container
from neocloud.messages.nebius.iam.v1 import State as ContainerState
from neocloud.messages.nebius.iam.v2 import (
    GetTenantByNameRequest,
    GetTenantRequest,
    ListProjectsResponse,
    ListTenantsRequest,
    ListTenantsResponse,
    Project,
    ProjectStatus,
    Tenant,
    TenantStatus,
    UpdateTenantRequest,
)
from neocloud.services.iam.api.keys import by_id
from neocloud.services.iam.types import is_tenant

M = TypeVar("M", bound=Message)
PROJECTS_V1, PROJECTS = "nebius.iam.v1.ProjectService", "nebius.iam.v2.ProjectService"
TENANTS = "nebius.iam.v2.TenantService"
ProjectState = ProjectStatus.ProjectState
TenantState = TenantStatus.TenantState
RESET_MASK_HEADER = "x-resetmask"
RESERVED_LABELS = "neocloud.dev/"


def project_message(container: Container) -> Project:
    project = Project(metadata=container.metadata)
    project.spec.region = container.spec.region
    project.status.project_state = ProjectState.Value(ContainerState.Name(container.status.container_state))
    return project


def tenant_message(row: Resource) -> Tenant:
    container = wire.message(row, Container)
    tenant = Tenant(metadata=container.metadata)
    tenant.spec.SetInParent()
    tenant.status.tenant_state = TenantState.Value(ContainerState.Name(container.status.container_state))
    return tenant


async def get(call: Call, request: GetTenantRequest) -> Tenant:
    return await call.dependencies.store.read(lambda tx: tenant_message(_tenant(tx, request.id)))


async def get_by_name(call: Call, request: GetTenantByNameRequest) -> Tenant:
    """Return the caller's tenant when it has this name. A caller belongs to one tenant."""
    tenant = await _own(call)
    if request.parent_id or tenant is None or tenant.metadata.name != request.name:
        raise contract.not_found("tenant", request.name)
    return tenant


async def list_tenants(call: Call, request: ListTenantsRequest) -> ListTenantsResponse:
    if request.filter:
        raise contract.bad_field("filter", "is not supported by this cloud; leave it unset")
    tenant = await _own(call)
    return ListTenantsResponse(items=[tenant] if tenant else [])


async def update(call: Call, request: UpdateTenantRequest) -> Write[Operation]:
    """Change labels. The name cannot change: the cloud finds its tenant by it when it starts."""
    mask = contract.parse_mask(call.headers.get(RESET_MASK_HEADER, ""))

    def change(tx: Transaction) -> NewOperation:
        row = _tenant(tx, request.metadata.id)
        new = contract.merge_update(tenant_message(row), request, mask).metadata
        _check_update(request, row, new)
        now = call.dependencies.clock.now()
        changed = replace(row, labels=dict(new.labels), updated_at=now)
        tx.update(changed, expected_version=row.resource_version)
        return NewOperation(changed, f"tenant {row.name}")

    return Write(change)


def _check_update(request: UpdateTenantRequest, row: Resource, new: ResourceMetadata) -> None:
    wanted = request.metadata.resource_version
    if wanted and wanted != row.resource_version:
        raise contract.conflict(row.id, f"{row.id} was changed in the meantime. Get it again first.")
    if request.name_prefix or new.name != row.name:
        field = "name_prefix" if request.name_prefix else "metadata.name"
        raise contract.bad_field(
            field, f"cannot be changed: the cloud finds its tenant by the name {row.name!r}"
        )
    for label, value in new.labels.items():
        if label.startswith(RESERVED_LABELS) and row.labels.get(label) != value:
            raise contract.bad_field(f"metadata.labels[{label}]", "is reserved for the cloud")


def _tenant(tx: Transaction, tenant_id: str) -> Resource:
    row = tx.get(tenant_id)
    if row is None or not is_tenant(row):
        raise contract.not_found("tenant", tenant_id)
    return row


async def _own(call: Call) -> Tenant | None:
    tenant_id = call.subject.tenant_id if call.subject else ""
    row = await call.dependencies.store.read(lambda tx: tx.get(tenant_id))
    return tenant_message(row) if row is not None and is_tenant(row) else None


def _as_v1(message_class: type[M]) -> Callable[[Message], M]:
    """Translate a request to version 1, which has the same fields under the same numbers."""
    return lambda request: message_class.FromString(request.SerializeToString())


def _project_list(answer: v1.ListProjectsResponse) -> ListProjectsResponse:
    items = [project_message(item) for item in answer.items]
    return ListProjectsResponse(items=items, next_page_token=answer.next_page_token)


def _alias(verb: str, request: type[Message], answer: Callable[[Any], Message] | None = None) -> MethodAlias:
    return MethodAlias(f"{PROJECTS}/{verb}", f"{PROJECTS_V1}/{verb}", _as_v1(request), answer)


METHODS = (
    Method(f"{TENANTS}/Get", get, "iam.tenants.get", target=by_id),
    # Every signed-in subject, about its own.
    Method(f"{TENANTS}/GetByName", get_by_name, permission=""),
    Method(f"{TENANTS}/List", list_tenants, permission=""),
    Method(
        f"{TENANTS}/Update",
        update,
        "iam.tenants.update",
        target=lambda request: request.metadata.id,
        is_change=True,
    ),
)

ALIASES = (
    _alias("Create", v1.CreateProjectRequest),
    _alias("Get", v1.GetProjectRequest, project_message),
    _alias("GetByName", v1.GetProjectByNameRequest, project_message),
    _alias("List", v1.ListProjectsRequest, _project_list),
    _alias("Update", v1.UpdateProjectRequest),
)


async def get_v1(call: Call, request: v1.GetTenantRequest) -> Container:
    row = await call.dependencies.store.read(lambda tx: tx.get(request.id))
    if row is None or not is_tenant(row):
        raise contract.not_found("tenant", request.id)
    return wire.message(row, Container)


async def list_tenants_v1(call: Call, request: v1.ListTenantsRequest) -> v1.ListTenantsResponse:
    """List the caller's tenant. A caller belongs to exactly one, so there is never a second page."""
    if request.filter:
        raise contract.bad_field("filter", "is not supported by this cloud; leave it unset")
    tenant_id = call.subject.tenant_id if call.subject else ""
    row = await call.dependencies.store.read(lambda tx: tx.get(tenant_id))
    return v1.ListTenantsResponse(items=[wire.message(row, Container)] if row else [])
