"""Tenants and projects. Version 1 of the API has one message for both, version 2 has two.

Projects of version 2 are changed by the verbs of version 1, translated. Tenants are neither created nor
deleted through the API.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from google.protobuf.message import Message

from neocloud.core import contract, wire
from neocloud.core.readers import Subject
from neocloud.core.service import Call, Method, MethodAlias, NewOperation, Write
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.common.v1 import Operation, ResourceMetadata
from neocloud.messages.nebius.iam import v1
from neocloud.messages.nebius.iam.v1 import Container
from neocloud.messages.nebius.iam.v1 import State as ContainerState
from neocloud.messages.nebius.iam.v2 import (
    GetProjectByNameRequest,
    GetProjectRequest,
    GetTenantByNameRequest,
    GetTenantRequest,
    ListProjectsRequest,
    ListProjectsResponse,
    ListTenantsRequest,
    ListTenantsResponse,
    Project,
    ProjectStatus,
    Tenant,
    TenantStatus,
    UpdateTenantRequest,
)
from neocloud.services.iam.access.authorization import known_projects, refused, subject_grants
from neocloud.services.iam.api.keys import by_id
from neocloud.services.iam.rules.accounts import show_region
from neocloud.services.iam.rules.grants import is_in_scope
from neocloud.services.iam.types import CONTAINER, is_tenant

M = TypeVar("M", bound=Message)
PROJECTS_V1, PROJECTS = "nebius.iam.v1.ProjectService", "nebius.iam.v2.ProjectService"
TENANTS = "nebius.iam.v2.TenantService"
LIST_PROJECTS, GET_PROJECTS = "iam.projects.list", "iam.projects.get"
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


async def list_projects_v1(call: Call, request: v1.ListProjectsRequest) -> v1.ListProjectsResponse:
    rows, token = await _page_of_projects(call, request)
    return v1.ListProjectsResponse(items=[_as_v1(row) for row in rows], next_page_token=token)


async def list_projects(call: Call, request: ListProjectsRequest) -> ListProjectsResponse:
    rows, token = await _page_of_projects(call, request)
    items = [project_message(wire.message(row, Container)) for row in rows]
    return ListProjectsResponse(items=items, next_page_token=token)


async def _page_of_projects(
    call: Call, request: v1.ListProjectsRequest | ListProjectsRequest
) -> tuple[Sequence[Resource], str]:
    """Return the projects of the caller's tenant in which the caller has a role.

    A caller who may list the projects of the tenant gets all of them."""
    if request.filter:
        raise contract.bad_field("filter", "is not supported by this cloud; leave it unset")
    if not request.parent_id:
        raise contract.bad_field("parent_id", "is required: the id of the tenant whose projects to list")
    subject = _subject(call)

    def find(tx: Transaction) -> tuple[Sequence[Resource], str]:
        denial = refused(tx, subject, LIST_PROJECTS, request.parent_id)
        is_own = request.parent_id == subject.tenant_id and is_in_scope(subject.scopes, LIST_PROJECTS)
        if denial is not None and not is_own:
            raise denial
        seen = None if denial is None else known_projects(tx, subject_grants(tx, subject.id))
        projects = tx.list(CONTAINER, parent_id=request.parent_id)[0]
        rows = [row for row in projects if seen is None or row.id in seen]
        return contract.page(rows, request, scope=f"{CONTAINER}:{request.parent_id}", key=_age)

    return await call.dependencies.store.read(find)


async def get_project_by_name_v1(call: Call, request: v1.GetProjectByNameRequest) -> Container:
    return _as_v1(await _named_project(call, request.parent_id, request.name))


async def get_project_by_name(call: Call, request: GetProjectByNameRequest) -> Project:
    row = await _named_project(call, request.parent_id, request.name)
    return project_message(wire.message(row, Container))


async def _named_project(call: Call, tenant_id: str, name: str) -> Resource:
    """Return the project with this name.

    Raises ApiError: a project in which the caller has no role is answered like a name that no project has.
    """
    subject = _subject(call)

    def find(tx: Transaction) -> Resource:
        if not is_in_scope(subject.scopes, GET_PROJECTS):  # what is said depends on no project, then
            raise refused(tx, subject, GET_PROJECTS, tenant_id) or contract.not_found("project", name)
        row = tx.find(CONTAINER, tenant_id, name)
        denial = refused(tx, subject, GET_PROJECTS, tenant_id if row is None else row.id)
        if row is None or denial is not None:
            raise contract.not_found("project", name)
        return row

    return await call.dependencies.store.read(find)


async def get_project(call: Call, request: GetProjectRequest) -> Project:
    row = await call.dependencies.store.read(lambda tx: tx.get(request.id))
    if row is None or row.kind != CONTAINER:
        raise contract.not_found("project", request.id)
    return project_message(wire.message(row, Container))


def _as_v1(row: Resource) -> Container:
    container = wire.message(row, Container)
    show_region(container)
    return container


def _age(project: Resource) -> str:
    return f"{project.created_at.isoformat()} {project.id}"


def _subject(call: Call) -> Subject:
    if call.subject is None:
        raise contract.unauthenticated("This call needs a token; sign in first.")
    return call.subject


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


def _v1_request(message_class: type[M]) -> Callable[[Message], M]:
    """Translate a request to version 1, which has the same fields under the same numbers."""
    return lambda request: message_class.FromString(request.SerializeToString())


def _alias(verb: str, request: type[Message]) -> MethodAlias:
    return MethodAlias(f"{PROJECTS}/{verb}", f"{PROJECTS_V1}/{verb}", _v1_request(request))


METHODS = (
    # Each checks the rights on the projects themselves.
    Method(f"{PROJECTS_V1}/List", list_projects_v1, permission=""),
    Method(f"{PROJECTS_V1}/GetByName", get_project_by_name_v1, permission=""),
    Method(f"{PROJECTS}/List", list_projects, permission=""),
    Method(f"{PROJECTS}/GetByName", get_project_by_name, permission=""),
    Method(f"{PROJECTS}/Get", get_project, GET_PROJECTS, target=by_id),
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

ALIASES = (_alias("Create", v1.CreateProjectRequest), _alias("Update", v1.UpdateProjectRequest))


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
