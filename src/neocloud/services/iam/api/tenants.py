"""Tenants, as far as the published API has them: get one, list those the caller belongs to."""

from neocloud.core import contract, wire
from neocloud.core.service import Call
from neocloud.messages.nebius.iam.v1 import (
    Container,
    GetTenantRequest,
    ListTenantsRequest,
    ListTenantsResponse,
)
from neocloud.services.iam.resources import is_tenant


async def get(call: Call, request: GetTenantRequest) -> Container:
    row = await call.dependencies.store.read(lambda tx: tx.get(request.id))
    if row is None or not is_tenant(row):
        raise contract.not_found("tenant", request.id)
    return wire.resource_message(row)


async def list_tenants(call: Call, request: ListTenantsRequest) -> ListTenantsResponse:
    """A service account belongs to exactly one tenant, so there is never a second page."""
    if request.filter:
        raise contract.bad_field("filter", "is not supported by this cloud; leave it unset")
    tenant_id = call.subject.tenant_id if call.subject else ""
    row = await call.dependencies.store.read(lambda tx: tx.get(tenant_id))
    return ListTenantsResponse(items=[wire.resource_message(row)] if row else [])
