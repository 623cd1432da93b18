"""The methods of quotas: read limits and usage, set a limit, and reset it to the default.

Each container has each quota, whether a limit was set for it or not. Only a limit that was set has a row:
creating and changing an allowance are the same, and deleting one restores the default limit.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from neocloud.core import contract, operations, wire
from neocloud.core.service import Call, Handler, Method, Write
from neocloud.core.store.protocol import OperationRow, Resource, Transaction
from neocloud.messages.nebius.common.v1 import Operation
from neocloud.messages.nebius.quotas.v1 import (
    CreateQuotaAllowanceRequest,
    DeleteQuotaAllowanceRequest,
    GetByNameRequest,
    GetQuotaAllowanceRequest,
    ListQuotaAllowancesRequest,
    ListQuotaAllowancesResponse,
    QuotaAllowance,
    QuotaAllowanceSpec,
    UpdateQuotaAllowanceRequest,
)
from neocloud.services.iam.types import CONTAINER, is_tenant, operators_tenant_id
from neocloud.services.quotas.ledger import limit_of
from neocloud.services.quotas.rules import (
    ACTIVE,
    ALLOWANCE,
    MAX_LIMIT,
    SERVICE_NAME,
    Quota,
    Quotas,
    State,
    UsageState,
    allowance_id,
    amount,
    default_quotas,
    parent_of,
    unknown_name,
    usage_percentage,
)

DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE = 200, 1000
_SetRequest = CreateQuotaAllowanceRequest | UpdateQuotaAllowanceRequest


@dataclass(frozen=True)
class QuotaContainer:
    """The container that a request names, with its tenant and the quotas of this cloud."""

    container: Resource
    tenant: Resource
    region: str
    quotas: Quotas

    def quota(self, name: str, field: str) -> Quota:
        found = self.quotas.get(name)
        if found is None:
            raise contract.bad_field(field, unknown_name(self.quotas, name))
        return found


async def list_allowances(call: Call, request: ListQuotaAllowancesRequest) -> ListQuotaAllowancesResponse:
    if not 0 <= request.page_size <= MAX_PAGE_SIZE:
        raise contract.bad_field("page_size", f"must be 1 to {MAX_PAGE_SIZE}, or 0 for the default")
    scope = f"quotas/{request.parent_id}"
    after = contract.page_after(request.page_token, scope)
    size = request.page_size or DEFAULT_PAGE_SIZE

    def read(tx: Transaction) -> ListQuotaAllowancesResponse:
        target = _quota_container(tx, call, request.parent_id, "parent_id")
        names = sorted(name for name in target.quotas if name > after)
        items = [_message(tx, target, target.quotas[name]) for name in names[:size]]
        last = names[size - 1] if len(names) > size else ""
        return ListQuotaAllowancesResponse(items=items, next_page_token=contract.page_token(last, scope))

    return await call.dependencies.store.read(read)


async def get_allowance(call: Call, request: GetQuotaAllowanceRequest) -> QuotaAllowance:
    def read(tx: Transaction) -> QuotaAllowance:
        target, quota = _of_id(tx, call, request.id, "id")
        return _message(tx, target, quota)

    return await call.dependencies.store.read(read)


async def get_allowance_by_name(call: Call, request: GetByNameRequest) -> QuotaAllowance:
    def read(tx: Transaction) -> QuotaAllowance:
        target = _quota_container(tx, call, request.parent_id, "parent_id")
        quota = target.quotas.get(request.name)
        if quota is None or request.region not in ("", target.region):
            raise contract.not_found("quota", request.name)
        return _message(tx, target, quota)

    return await call.dependencies.store.read(read)


async def create_allowance(call: Call, request: CreateQuotaAllowanceRequest) -> Write[Operation]:
    def write(tx: Transaction) -> Operation:
        target = _quota_container(tx, call, request.metadata.parent_id, "metadata.parent_id")
        return _set(tx, call, target, target.quota(request.metadata.name, "metadata.name"), request, "Create")

    return Write(write)


async def update_allowance(call: Call, request: UpdateQuotaAllowanceRequest) -> Write[Operation]:
    def write(tx: Transaction) -> Operation:
        target, quota = _of_id(tx, call, request.metadata.id, "metadata.id")
        return _set(tx, call, target, quota, request, "Update")

    return Write(write)


async def delete_allowance(call: Call, request: DeleteQuotaAllowanceRequest) -> Write[Operation]:
    def write(tx: Transaction) -> Operation:
        target, quota = _of_id(tx, call, request.id, "id")
        _check_operator(tx, call, target)
        tx.delete(allowance_id(target.container.id, quota.name))
        return _done(tx, call, target, quota, request, "Delete")

    return Write(write)


def _quota_container(tx: Transaction, call: Call, parent_id: str, field: str) -> QuotaContainer:
    container = tx.get(parent_id)
    if container is None or container.kind != CONTAINER:
        raise contract.bad_field(field, "must be the id of a tenant or a project")
    tenant = container if is_tenant(container) else tx.get(container.parent_id)
    assert tenant is not None, "A project has a tenant."
    region = getattr(call.dependencies.settings, "region", "")
    quotas = call.dependencies.provided.find(Quotas) or default_quotas()
    return QuotaContainer(container, tenant, region, quotas)


def _of_id(tx: Transaction, call: Call, identifier: str, field: str) -> tuple[QuotaContainer, Quota]:
    target = _quota_container(tx, call, parent_of(identifier), field)
    for quota in target.quotas.values():
        if allowance_id(target.container.id, quota.name) == identifier:
            return target, quota
    raise contract.not_found("quota", identifier)


def _message(tx: Transaction, target: QuotaContainer, quota: Quota) -> QuotaAllowance:
    container = target.container
    identifier = allowance_id(container.id, quota.name)
    row = tx.get(identifier)
    message = wire.message(row, QuotaAllowance) if row is not None else QuotaAllowance()
    message.metadata.id, message.metadata.parent_id = identifier, container.id
    message.metadata.name = quota.name
    limit = limit_of(tx, container, quota)
    if limit is None:  # a project without one of its own may use what its tenant has
        limit = limit_of(tx, target.tenant, quota) or 0
    usage = max(0, tx.counters(container.id).get(quota.name, 0))
    message.spec.limit, message.spec.region = limit, target.region
    status = message.status
    status.state = State.Value(ACTIVE)
    status.usage = usage
    status.usage_state = UsageState.Value("USAGE_STATE_USED" if usage else "USAGE_STATE_NOT_USED")
    status.usage_percentage = usage_percentage(usage, limit)
    status.service, status.service_description = quota.service, quota.service_title
    status.description, status.unit = quota.title, quota.unit
    return message


def _set(
    tx: Transaction, call: Call, target: QuotaContainer, quota: Quota, request: _SetRequest, verb: str
) -> Operation:
    _check_operator(tx, call, target)
    _check(tx, target, quota, request)
    identifier, now = allowance_id(target.container.id, quota.name), call.dependencies.clock.now()
    spec = QuotaAllowanceSpec(limit=request.spec.limit, region=target.region).SerializeToString()
    old = tx.get(identifier)
    if old is not None:
        version = old.resource_version + (old.spec != spec)
        tx.update(replace(old, spec=spec, resource_version=version, updated_at=now))
    else:
        row = Resource(
            id=identifier,
            kind=ALLOWANCE,
            parent_id=target.container.id,
            name=quota.name,
            created_at=now,
            updated_at=now,
            spec=spec,
            state=ACTIVE,
            owner_id=target.container.id,
        )
        tx.insert(row)
    return _done(tx, call, target, quota, request, verb)


def _check(tx: Transaction, target: QuotaContainer, quota: Quota, request: _SetRequest) -> None:
    spec, wanted = request.spec, request.metadata.resource_version
    if not spec.HasField("limit"):
        raise contract.bad_field(
            "spec.limit", "is required; delete the allowance to restore the default limit"
        )
    if spec.limit > MAX_LIMIT:
        raise contract.bad_field("spec.limit", f"is {spec.limit}; must be at most {MAX_LIMIT}")
    if spec.region not in ("", target.region):
        raise contract.bad_field("spec.region", f"is {spec.region!r}; this cloud is {target.region!r}")
    if request.metadata.name not in ("", quota.name):
        raise contract.bad_field("metadata.name", f"cannot be changed; it is {quota.name!r}")
    old = tx.get(allowance_id(target.container.id, quota.name))
    if wanted and wanted != (old.resource_version if old else 0):
        raise contract.conflict(
            target.container.id, f"{quota.name} was changed in the meantime. Get it again first."
        )
    highest = limit_of(tx, target.tenant, quota)
    if not is_tenant(target.container) and highest is not None and spec.limit > highest:
        raise contract.bad_field(
            "spec.limit",
            f"is {amount(spec.limit, quota.unit)}, more than the {amount(highest, quota.unit)} of the whole "
            "tenant; set a lower one, or raise that of the tenant first: "
            f"neo quota set {quota.name} {spec.limit} --tenant {target.tenant.id}",
        )


def _check_operator(tx: Transaction, call: Call, target: QuotaContainer) -> None:
    """Raise ApiError if a caller who is not an operator changes the limit of a tenant."""
    if not is_tenant(target.container):
        return
    if call.subject is None or call.subject.tenant_id != operators_tenant_id(tx):
        raise contract.permission_denied(
            "quotas.allowances.update",
            target.container.id,
            "Only the operator of this cloud can change the limits of a tenant. You can set limits of your "
            "projects within them.",
        )


def _done(
    tx: Transaction,
    call: Call,
    target: QuotaContainer,
    quota: Quota,
    request: _SetRequest | DeleteQuotaAllowanceRequest,
    verb: str,
) -> Operation:
    now = call.dependencies.clock.now()
    row = tx.get(allowance_id(target.container.id, quota.name))
    operation = OperationRow(
        id=contract.new_id("operation"),
        resource_id=allowance_id(target.container.id, quota.name),
        resource_kind=ALLOWANCE,
        parent_id=target.container.id,
        method=f"{SERVICE_NAME}/{verb}",
        description=f"{verb} quota allowance {quota.name}",
        created_by=call.subject.id if call.subject else "",
        created_at=now,
        resource_version=row.resource_version if row else 0,
        request=contract.pack(request).SerializeToString(),
        request_id=call.request_id,
    )
    finished = operations.finish(operation, now)
    tx.insert_operation(finished)
    return wire.operation_message(finished)


def _of_request(identifier: str) -> str:
    """Return the id that the permission is checked on: the container of an allowance, or else an unknown
    id."""
    return parent_of(identifier) or identifier


_TABLE: tuple[tuple[str, Handler[Any], str, Callable[[Any], str]], ...] = (
    ("List", list_allowances, "list", lambda request: request.parent_id),
    ("Get", get_allowance, "get", lambda request: _of_request(request.id)),
    ("GetByName", get_allowance_by_name, "get", lambda request: request.parent_id),
    ("Create", create_allowance, "update", lambda request: request.metadata.parent_id),
    ("Update", update_allowance, "update", lambda request: _of_request(request.metadata.id)),
    ("Delete", delete_allowance, "update", lambda request: _of_request(request.id)),
)

METHODS = tuple(
    Method(
        f"{SERVICE_NAME}/{verb}",
        handler,
        f"quotas.allowances.{permission}",
        target,
        is_change=permission == "update",
        is_checked=verb != "Update",
    )
    for verb, handler, permission, target in _TABLE
)
