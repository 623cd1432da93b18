"""Static keys: issue one, find one by its token, revoke one by its token."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from neocloud.core import contract, wire
from neocloud.core.custom_verbs import done
from neocloud.core.kind import Violation
from neocloud.core.service import Call, Method
from neocloud.core.store.protocol import AlreadyExists, Resource, Transaction
from neocloud.messages.nebius.common.v1 import Operation
from neocloud.messages.nebius.iam.v1 import (
    FindStaticKeyRequest,
    FindStaticKeyResponse,
    IssueStaticKeyRequest,
    IssueStaticKeyResponse,
    RevokeStaticKeyRequest,
    StaticKeyStatus,
)
from neocloud.services.iam.access.static_keys import find_static_key, key_id_in, new_token
from neocloud.services.iam.resources import STATIC_KEY, STATIC_KEY_ID_PREFIX, State
from neocloud.services.iam.rules.keys import account_problem, expiry_violations, view_static_key
from neocloud.services.iam.rules.privilege import holds_at_least, refusal

SERVICE = "nebius.iam.v1.StaticKeyService"
RESERVED_LABELS = "neocloud.dev/"


async def issue(call: Call, request: IssueStaticKeyRequest) -> IssueStaticKeyResponse:
    """The only answer that ever holds the token."""

    def make(tx: Transaction) -> Any:
        violations = list(_violations(tx, call, request))
        if violations:
            raise contract.bad_request(violations)
        row = _row(call, request)
        if call.subject is None or not holds_at_least(tx, call.subject.id, row.owner_id):
            raise refusal("iam.staticKeys.create", row.owner_id)
        try:
            tx.insert(row)
        except AlreadyExists:
            raise contract.already_exists("static key", row.name) from None
        token = new_token(tx, row.id)
        operation = done(
            tx, call, request, row, path=f"{SERVICE}/Issue", title=f"static key {row.name}".strip()
        )
        return IssueStaticKeyResponse(token=token, operation=operation)

    return await call.dependencies.store.write(make)


async def find(call: Call, request: FindStaticKeyRequest) -> FindStaticKeyResponse:
    def look(tx: Transaction) -> Any:
        key = wire.resource_message(_proven(tx, request.token))
        view_static_key(key, tx, call.dependencies.clock.now())
        return FindStaticKeyResponse(static_key=key)

    return await call.dependencies.store.read(look)


async def revoke(call: Call, request: RevokeStaticKeyRequest) -> Operation:
    """The key stays, for the record, and opens nothing any more."""

    def change(tx: Transaction) -> Any:
        row = _proven(tx, request.token)
        status = StaticKeyStatus(active=False).SerializeToString()
        now = call.dependencies.clock.now()
        tx.update(replace(row, status=status, state=State.INACTIVE, updated_at=now))
        return done(
            tx, call, request, row, path=f"{SERVICE}/Revoke", title=f"static key {row.name or row.id}"
        )

    return await call.dependencies.store.write(change)


def _violations(tx: Transaction, call: Call, request: Any) -> Iterable[Violation]:
    metadata, now = request.metadata, call.dependencies.clock.now()
    if metadata.id:
        yield Violation("metadata.id", "is given by the cloud; leave it empty")
    for label in metadata.labels:
        if label.startswith(RESERVED_LABELS):
            yield Violation(f"metadata.labels[{label}]", f"{RESERVED_LABELS} labels are the cloud's own")
    yield from account_problem(request, tx.get)
    yield from expiry_violations(request, "expiresAt", now)


def _row(call: Call, request: Any) -> Resource:
    now = call.dependencies.clock.now()
    return Resource(
        id=contract.new_id(STATIC_KEY_ID_PREFIX),
        kind=STATIC_KEY,
        parent_id=request.metadata.parent_id,
        name=request.metadata.name,
        created_at=now,
        updated_at=now,
        labels=dict(request.metadata.labels),
        spec=request.spec.SerializeToString(),
        status=StaticKeyStatus(active=True).SerializeToString(),
        state=State.ACTIVE,
        owner_id=request.spec.account.service_account.id,
    )


def _proven(tx: Transaction, token: str) -> Resource:
    row = find_static_key(tx, token)
    if row is None:
        raise contract.not_found("resource", key_id_in(token))
    return row


def _key_in(request: Any) -> str:
    return key_id_in(request.token) or "static key"


METHODS = (
    Method(
        f"{SERVICE}/Issue",
        issue,
        "iam.staticKeys.create",
        target=lambda request: request.metadata.parent_id,
        is_change=True,
    ),
    Method(f"{SERVICE}/Find", find, "iam.staticKeys.get", target=_key_in),
    Method(f"{SERVICE}/Revoke", revoke, "iam.staticKeys.delete", target=_key_in, is_change=True),
)
