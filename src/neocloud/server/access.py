"""Check what a caller may do, use and see.

The order is the same for every method: permission for the call, permission for the other resources that the
request names, and only then validation. A caller without permission learns nothing else about the resource.
Refusals are written to the audit log.

The other resources are found by the contract's own `nid` annotation, so an annotated field needs no further
code: without the check, a subnet, a disk or a service account of another tenant could be used, or found out
about, through a resource of the caller's own.

Secrets in an answer are shown only to callers with the permission `<service>.<nouns>.getSecret`, whichever
method gives the answer. A caller that was not shown the secrets sends them back blank in an update; they are
then kept as they are.
"""

from collections.abc import Collection, Iterable, Iterator
from functools import cache
from typing import Any

from google.protobuf.message import Message

from neocloud.core import contract, wire
from neocloud.core.kind import Kind
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.server.changes import record_refusal
from neocloud.server.request import Request, Runtime


async def require(runtime: Runtime, request: Request, permission: str, target_id: str) -> None:
    """Raises ApiError when the subject does not have the permission on the target."""
    if request.subject is None:
        raise contract.unauthenticated("This call needs a token; sign in first.")
    try:
        await runtime.authorizer.authorize(request.subject, permission, target_id)
    except contract.ApiError as denial:
        await record_refusal(runtime, request, denial, target_id)
        raise


async def require_references(
    runtime: Runtime, request: Request, target_id: str, known: Collection[str] = ()
) -> None:
    """Raises ApiError unless the subject may use every resource that the request names, and act as the
    account of each that runs the work of others. `known` are ids that the resource named before: keeping them
    asks for no new right."""
    wanted = {identifier for _, identifier in references(request.message)} - {target_id, *known}
    for identifier in sorted(wanted):
        row = await runtime.store.read(lambda tx, named=identifier: tx.get(named))
        kind = runtime.kinds.get(row.kind) if row is not None else None
        if kind is None:
            raise contract.not_found("resource", identifier)
        await _require_reference(runtime, request, kind, identifier)
        if kind.runs_others:
            await require_acting(runtime, request, await accounts_of(runtime, identifier))


async def _require_reference(runtime: Runtime, request: Request, kind: Kind, identifier: str) -> None:
    """Require that the caller may read a resource to which a request refers; the error does not tell whether
    it exists.
    """
    try:
        await require(runtime, request, f"{kind.permission}.{kind.reference_verb}", identifier)
    except contract.ApiError as denial:
        if denial.code is contract.Code.NOT_FOUND:
            raise contract.not_found("resource", identifier) from None
        raise


async def require_acting(runtime: Runtime, request: Request, account_ids: Collection[str]) -> None:
    """Raise ApiError unless the subject may act as each of these accounts.

    A caller who decides what a resource runs can do everything that the account of the resource can."""
    for identifier in sorted(account_ids):
        row = await runtime.store.read(lambda tx, named=identifier: tx.get(named))
        kind = runtime.kinds.get(row.kind) if row is not None else None
        if kind is not None:  # An account that is gone gives no rights.
            await require(runtime, request, f"{kind.permission}.{kind.reference_verb}", identifier)


async def accounts_of(runtime: Runtime, resource_id: str) -> frozenset[str]:
    """The accounts that the resource acts as; none when there is no such resource."""
    row = await runtime.store.read(lambda tx: tx.get(resource_id))
    if row is None or row.kind not in runtime.kinds or not row.spec:
        return frozenset()
    return acts_as(wire.resource_message(row).spec, acting_prefixes(runtime.kinds.values()))


def refuse_limited(request: Request) -> None:
    """Raise ApiError when the sign-in is limited to some permissions: what any signed-in subject may do to
    itself asks for none."""
    if request.subject is not None and request.subject.scopes is not None:
        raise contract.permission_denied(
            "", request.subject.id, "The key that signs this call is for other services."
        )


def refuse_part(tx: Transaction, row: Resource) -> None:
    """Raise ApiError for a resource that the reconciler of its owner would only put back."""
    owner = tx.get(row.owner_id) if row.owner_id and row.finalizers else None
    if owner is not None and owner.deleted_at is None:
        raise contract.bad_state(
            row.id,
            f"{_named(row)} is a part of {_named(owner)}. Change or delete that instead.",
        )


def _named(row: Resource) -> str:
    return f"{row.name!r} ({row.id})" if row.name else row.id


_SUBJECT_FIELDS = frozenset({"id", "parent_id", "metadata"})
"""On the request itself: what the method is about."""
_ANY_KIND = "*"


def references(request: Message) -> Iterator[tuple[str, str]]:
    """(field path, id) of each resource that the request names besides its own."""
    for field, content in request.ListFields():
        if field.name not in _SUBJECT_FIELDS:
            yield from _in_field(request.DESCRIPTOR, field, content, field.name)


def spec_references(spec: Message) -> Iterator[tuple[str, str]]:
    """The same for the spec of a resource that is there already."""
    yield from _in_message(spec, "spec.")


def acting_prefixes(kinds: Iterable[Kind]) -> frozenset[str]:
    """Id prefixes of accounts: kinds that a resource acts as when it names one. To name those needs more than
    to see them."""
    return frozenset(kind.id_prefix for kind in kinds if kind.reference_verb != Kind.reference_verb)


def acts_as(spec: Message, prefixes: frozenset[str]) -> frozenset[str]:
    """Ids of the accounts that a resource with this spec acts as."""
    return frozenset(named for _, named in spec_references(spec) if contract.id_prefix(named) in prefixes)


def _in_message(message: Message, path: str) -> Iterator[tuple[str, str]]:
    if not _may_name_others(message.DESCRIPTOR):
        return
    for field, content in message.ListFields():
        yield from _in_field(message.DESCRIPTOR, field, content, f"{path}{field.name}")


def _in_field(
    owner: contract.MessageType, field: contract.Field, content: Any, path: str
) -> Iterator[tuple[str, str]]:
    if field.message_type is None:
        if _is_reference(owner, field):
            values = enumerate(content) if field.is_repeated else ((None, content),)
            yield from ((path if at is None else f"{path}[{at}]", value) for at, value in values if value)
    elif not field.is_repeated:
        yield from _in_message(content, f"{path}.")
    elif field.message_type.GetOptions().map_entry:
        if field.message_type.fields_by_name["value"].message_type is not None:
            for key in content:
                yield from _in_message(content[key], f"{path}[{key}].")
    else:
        for index, item in enumerate(content):
            yield from _in_message(item, f"{path}[{index}].")


def _is_reference(owner: contract.MessageType, field: contract.Field) -> bool:
    nid = contract.message_annotations(owner)[field.name].nid
    return nid is not None and _ANY_KIND not in nid.resources


@cache
def _may_name_others(descriptor: contract.MessageType) -> bool:
    """Worked out once: most messages name nobody."""
    seen: set[str] = set()

    def search(current: contract.MessageType) -> bool:
        if current.full_name in seen:
            return False
        seen.add(current.full_name)
        return any(
            _is_reference(current, field) if field.message_type is None else search(field.message_type)
            for field in current.fields
        )

    return search(descriptor)


GET_SECRET = "getSecret"


async def withhold_secrets(runtime: Runtime, request: Request, answer: Message) -> None:
    """Blank, in place, the secrets of every resource in the answer that the caller may not read."""
    may_read: dict[tuple[str, str], bool] = {}

    async def ask(kind: Kind, target_id: str) -> bool:
        key = (kind.permission, target_id)
        if key not in may_read:
            may_read[key] = await may_read_secrets(runtime, request, kind, target_id)
        return may_read[key]

    for resource in list(_resources(answer)):
        kind = runtime.kinds.get(resource.DESCRIPTOR.full_name)
        if not contract.holds_secrets(resource):
            continue
        metadata = resource.metadata
        # A permission on the parent covers its children: one check for a whole list.
        if kind is None or not (
            (metadata.parent_id and await ask(kind, metadata.parent_id)) or await ask(kind, metadata.id)
        ):
            contract.clear_secrets(resource)


async def may_read_secrets(runtime: Runtime, request: Request, kind: Kind, target_id: str) -> bool:
    """Return whether the caller holds the kind's permission for secrets on the resource, or on its parent."""
    if request.subject is None or not target_id:
        return False
    try:
        await runtime.authorizer.authorize(request.subject, f"{kind.permission}.{GET_SECRET}", target_id)
    except contract.ApiError as denial:
        if denial.code in (contract.Code.PERMISSION_DENIED, contract.Code.NOT_FOUND):
            return False
        raise
    return True


def _resources(value: Message) -> Iterator[Any]:
    """All messages of kinds that can hold secrets, inside this message."""
    descriptor = value.DESCRIPTOR
    if not _may_hold_resources(descriptor):
        return
    if _is_resource(descriptor):
        yield value
        return
    for field, content in value.ListFields():
        if field.message_type is None:
            continue
        if not field.is_repeated:
            yield from _resources(content)
        elif field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is not None:
                for each in content.values():
                    yield from _resources(each)
        else:
            for each in content:
                yield from _resources(each)


@cache
def _may_hold_resources(descriptor: contract.MessageType) -> bool:
    """Worked out once: most answers hold none."""
    seen: set[str] = set()

    def search(current: contract.MessageType) -> bool:
        if current.full_name in seen:
            return False
        seen.add(current.full_name)
        if _is_resource(current):
            return True
        return any(search(field.message_type) for field in current.fields if field.message_type is not None)

    return search(descriptor)


def _is_resource(descriptor: contract.MessageType) -> bool:
    """Return whether this is a resource that can hold secrets, or a request or another message shaped like
    one.
    """
    return "metadata" in descriptor.fields_by_name and bool(contract.secret_parts(descriptor.full_name))
