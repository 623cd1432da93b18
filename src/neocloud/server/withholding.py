"""Show secrets in resources only to callers with the permission `<service>.<nouns>.getSecret`.

Every answer passes through here, whichever method gives it, so no method can forget it. A caller that was not
shown the secrets sends them back blank in an update; they are then kept as they are.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from neocloud.core import contract
from neocloud.core.kind import Kind
from neocloud.server.request import Request
from neocloud.server.runtime import Runtime

GET_SECRET = "getSecret"


async def withhold_secrets(runtime: Runtime, request: Request, answer: Any) -> None:
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
    """Whether the caller holds the kind's permission for secrets on the resource, or on what it lies in."""
    if request.subject is None or not target_id:
        return False
    try:
        await runtime.authorizer.authorize(request.subject, f"{kind.permission}.{GET_SECRET}", target_id)
    except contract.ApiError as denial:
        if denial.code in (contract.Code.PERMISSION_DENIED, contract.Code.NOT_FOUND):
            return False
        raise
    return True


def _resources(value: Any) -> Iterator[Any]:
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
def _may_hold_resources(descriptor: Any) -> bool:
    """Worked out once: most answers hold none."""
    seen: set[str] = set()

    def search(current: Any) -> bool:
        if current.full_name in seen:
            return False
        seen.add(current.full_name)
        if _is_resource(current):
            return True
        return any(search(field.message_type) for field in current.fields if field.message_type is not None)

    return search(descriptor)


def _is_resource(descriptor: Any) -> bool:
    """Whether this is a resource that can hold secrets, or a request or another message shaped like one."""
    return "metadata" in descriptor.fields_by_name and bool(contract.secret_parts(descriptor.full_name))
