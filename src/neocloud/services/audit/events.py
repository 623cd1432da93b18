"""Translation of rows of the audit log into messages of the published API. Pure."""

import json
from typing import Any

from neocloud.core import contract
from neocloud.core.store.audit_query import AuditEvent
from neocloud.messages.google.rpc import Code as RpcCode
from neocloud.messages.nebius.audit.v2 import AuditEvent as Event
from neocloud.messages.nebius.audit.v2 import Authentication, AuthenticationType, Request, Resource, Status

Packed = contract.message("google.protobuf.Any")

SPEC_VERSION = "1.0"
"""The version of CloudEvents."""
EVENT_VERSION = "1.0"


def event_message(event: AuditEvent) -> Event:
    message = Event(
        id=event.id,
        source=f"/{event.method.partition('/')[0]}",
        spec_version=SPEC_VERSION,
        type=event.type,
        action=event.action,
        time=event.at,
        event_version=EVENT_VERSION,
    )
    message.service.name = event.service
    if event.status in Status.keys():  # noqa: SIM118  an enum of protobuf, no dictionary
        message.status = Status.Value(event.status)
    _add_subject(message.authentication, event)
    message.authorization.authorized = event.code not in (
        contract.Code.PERMISSION_DENIED,
        contract.Code.UNAUTHENTICATED,
    )
    _add_resource(message.resource, event)
    _add_request(message.request, event)
    message.response.status_code = RpcCode.Value(contract.Code(event.code).name)
    message.response.error_message = event.message
    return message


def _add_subject(authentication: Authentication, event: AuditEvent) -> None:
    authentication.authenticated = bool(event.subject)
    authentication.authentication_type = AuthenticationType.Value("ACCESS_TOKEN")
    subject = authentication.subject
    subject.name = event.subject_name
    if event.subject_kind == "user":
        subject.tenant_user_id = event.subject
    elif event.subject:
        subject.service_account_id = event.subject


def _add_resource(resource: Resource, event: AuditEvent) -> None:
    metadata = resource.metadata
    metadata.id, metadata.name, metadata.type = event.resource_id, event.resource_name, event.resource_kind
    for identifier, name, kind in json.loads(event.hierarchy or "[]"):
        resource.hierarchy.add(id=identifier, name=name, type=kind)


def _add_request(request: Request, event: AuditEvent) -> None:
    request.client_ip, request.user_agent = event.source_address, event.user_agent
    request.request_id = request.trace_id = event.request_id
    request.idempotency_id = event.idempotency_key
    parameters = _parameters(event.request)
    if event.impersonator_id:
        parameters["impersonator_id"] = event.impersonator_id
    if parameters:
        request.parameters.update(parameters)


def _parameters(packed: bytes) -> dict[str, Any]:
    """Return the request in the contract's JSON form. Its secrets were removed before it was stored."""
    if not packed:
        return {}
    try:
        return contract.to_dict(contract.unpack(Packed.FromString(packed)))
    except LookupError:  # a message of an earlier release
        return {}
