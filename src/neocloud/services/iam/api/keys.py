"""Keys of service accounts: list by account, activate, deactivate; issue, find and revoke static keys."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol, TypeVar

from neocloud.core import contract, wire
from neocloud.core.kind import Violation
from neocloud.core.service import Call, Handler, Method, NewOperation, Write
from neocloud.core.store.protocol import AlreadyExists, Resource, Transaction
from neocloud.messages.nebius.common.v1 import Operation
from neocloud.messages.nebius.iam.v1 import (
    ActivateAuthPublicKeyRequest,
    AuthPublicKey,
    DeactivateAuthPublicKeyRequest,
    FindStaticKeyRequest,
    FindStaticKeyResponse,
    IssueStaticKeyRequest,
    IssueStaticKeyResponse,
    ListAuthPublicKeyByAccountRequest,
    ListAuthPublicKeyResponse,
    RevokeStaticKeyRequest,
    StaticKey,
    StaticKeyStatus,
)
from neocloud.messages.nebius.iam.v2 import (
    AccessKey,
    ActivateAccessKeyRequest,
    DeactivateAccessKeyRequest,
    ListAccessKeysByAccountRequest,
)
from neocloud.services.iam.access.account_keys import find_static_key, key_id_in, new_token
from neocloud.services.iam.rules.grants import holds_at_least, refusal
from neocloud.services.iam.rules.keys import (
    account_violations,
    expiry_violations,
    set_state,
    show_expiry,
    view_static_key,
)
from neocloud.services.iam.types import AUTH_PUBLIC_KEY, STATIC_KEY, STATIC_KEY_ID_PREFIX, IamState

KeyT = TypeVar("KeyT", AuthPublicKey, AccessKey)
ListByAccountRequest = ListAuthPublicKeyByAccountRequest | ListAccessKeysByAccountRequest
IdRequest = (
    ActivateAuthPublicKeyRequest
    | DeactivateAuthPublicKeyRequest
    | ActivateAccessKeyRequest
    | DeactivateAccessKeyRequest
)


class HasId(Protocol):
    """A request that names its resource by id."""

    id: str


PUBLIC_KEYS = "nebius.iam.v1.AuthPublicKeyService"


async def list_by_account(
    call: Call, request: ListAuthPublicKeyByAccountRequest
) -> ListAuthPublicKeyResponse:
    items, token = await list_keys_of(call, request, AuthPublicKey)
    return ListAuthPublicKeyResponse(items=items, next_page_token=token)


async def list_keys_of(call: Call, request: ListByAccountRequest, kind: type[KeyT]) -> tuple[list[KeyT], str]:
    """Return a page of the keys of one kind that a service account has, and the token of the next page."""
    if request.filter:
        raise contract.bad_field("filter", "is not supported by this cloud; leave it unset")
    account_id, now = account_of(request), call.dependencies.clock.now()
    kind_name = kind.DESCRIPTOR.full_name
    owned = await call.dependencies.store.read(lambda tx: tx.owned(account_id))
    found, token = contract.page(
        [row for row in owned if row.kind == kind_name],
        request,
        scope=f"{kind_name}/{account_id}",
        key=lambda row: row.id,
    )
    items = [wire.message(row, kind) for row in found]
    for item in items:
        show_expiry(item, now)
    return items, token


def account_of(request: ListByAccountRequest) -> str:
    return request.account.service_account.id


def switch(kind: str, state: IamState) -> Handler[IdRequest]:
    """Return a handler that sets the state of a key of this kind."""

    async def handle(call: Call, request: IdRequest) -> Write[Operation]:
        def change(tx: Transaction) -> NewOperation:
            row = tx.get(request.id)
            if row is None or row.kind != kind:
                raise contract.not_found("key", request.id)
            now = call.dependencies.clock.now()
            changed = replace(row, status=set_state(row, state), state=state, updated_at=now)
            tx.update(changed)
            return NewOperation(changed, f"key {row.name or row.id}")

        return Write(change)

    return handle


def switches(kind: str, service: str, permission: str) -> tuple[Method[IdRequest], Method[IdRequest]]:
    """Return Activate and Deactivate of a service whose keys are of this kind."""
    on, off = f"{service}/Activate", f"{service}/Deactivate"
    return (
        Method(on, switch(kind, IamState.ACTIVE), permission, target=by_id, is_change=True),
        Method(off, switch(kind, IamState.INACTIVE), permission, target=by_id, is_change=True),
    )


def by_id(request: HasId) -> str:
    return request.id


STATIC_KEYS = "nebius.iam.v1.StaticKeyService"
RESERVED_LABELS = "neocloud.dev/"


async def issue(call: Call, request: IssueStaticKeyRequest) -> Write[IssueStaticKeyResponse]:
    """Create a key. Only this answer ever holds its token."""

    def make(tx: Transaction) -> NewOperation:
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
        title = f"static key {row.name}".strip()
        return NewOperation(
            row, title, answer=lambda operation: IssueStaticKeyResponse(token=token, operation=operation)
        )

    return Write(make)


async def find(call: Call, request: FindStaticKeyRequest) -> FindStaticKeyResponse:
    def read(tx: Transaction) -> FindStaticKeyResponse:
        key = wire.message(_key_of_token(tx, request.token), StaticKey)
        view_static_key(key, tx, call.dependencies.clock.now())
        return FindStaticKeyResponse(static_key=key)

    return await call.dependencies.store.read(read)


async def revoke(call: Call, request: RevokeStaticKeyRequest) -> Write[Operation]:
    """Deactivate a key permanently. Its row stays, for the record."""

    def change(tx: Transaction) -> NewOperation:
        row = _key_of_token(tx, request.token)
        status = StaticKeyStatus(active=False).SerializeToString()
        now = call.dependencies.clock.now()
        tx.update(replace(row, status=status, state=IamState.INACTIVE, updated_at=now))
        return NewOperation(row, f"static key {row.name or row.id}")

    return Write(change)


def _violations(tx: Transaction, call: Call, request: IssueStaticKeyRequest) -> Iterable[Violation]:
    metadata, now = request.metadata, call.dependencies.clock.now()
    if metadata.id:
        yield Violation("metadata.id", "is assigned by the cloud; leave it empty")
    for label in metadata.labels:
        if label.startswith(RESERVED_LABELS):
            yield Violation(
                f"metadata.labels[{label}]", f"labels {RESERVED_LABELS}... are reserved for the cloud"
            )
    yield from account_violations(request, tx.get)
    yield from expiry_violations(request, "expiresAt", now)


def _row(call: Call, request: IssueStaticKeyRequest) -> Resource:
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
        state=IamState.ACTIVE,
        owner_id=request.spec.account.service_account.id,
    )


def _key_of_token(tx: Transaction, token: str) -> Resource:
    row = find_static_key(tx, token)
    if row is None:
        raise contract.not_found("resource", key_id_in(token))
    return row


def _key_in(request: FindStaticKeyRequest | RevokeStaticKeyRequest) -> str:
    return key_id_in(request.token) or "static key"


METHODS = (
    Method(f"{PUBLIC_KEYS}/ListByAccount", list_by_account, "iam.authPublicKeys.list", target=account_of),
    *switches(AUTH_PUBLIC_KEY, PUBLIC_KEYS, "iam.authPublicKeys.update"),
    Method(
        f"{STATIC_KEYS}/Issue",
        issue,
        "iam.staticKeys.create",
        target=lambda request: request.metadata.parent_id,
        is_change=True,
    ),
    Method(f"{STATIC_KEYS}/Find", find, "iam.staticKeys.get", target=_key_in),
    Method(f"{STATIC_KEYS}/Revoke", revoke, "iam.staticKeys.delete", target=_key_in, is_change=True),
)
