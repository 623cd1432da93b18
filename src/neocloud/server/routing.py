"""Build the table from method path to endpoint out of the services' own tables.

Precedence: a service's Method over the standard verb of its kind; a MethodAlias is served by either. Two
services that claim one path are refused.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from neocloud.core import contract
from neocloud.core.kind import Kind
from neocloud.core.service import AnyMethod, MethodAlias, Service
from neocloud.server.request import (
    DescriptorError,
    Endpoint,
    KindDescriptor,
    Runtime,
    descriptor_of,
    require_operation_answer,
)
from neocloud.server.validation import MAX_REQUEST_BYTES
from neocloud.server.verbs import try_create
from neocloud.server.verbs.create import Create
from neocloud.server.verbs.custom import AliasEndpoint, Custom
from neocloud.server.verbs.delete import Delete
from neocloud.server.verbs.operation import SERVICES, GetOperation, ListOperations, ListOperationsByParent
from neocloud.server.verbs.read import Get, GetByName, List
from neocloud.server.verbs.update import Update

_VERBS: Mapping[str, Callable[[Runtime, KindDescriptor], Any]] = {
    "Create": Create,
    "Get": Get,
    "GetByName": GetByName,
    "List": List,
    "Update": Update,
    "Delete": Delete,
}
_CHANGES = frozenset({"Create", "Update", "Delete"})
_BY_PARENT = "ListOperationsByParent"


def kinds_of(services: Sequence[Service]) -> dict[str, Kind]:
    """All kinds by message name; DescriptorError when two services claim one."""
    kinds: dict[str, Kind] = {}
    for service in services:
        for kind in service.kinds:
            if kind.message in kinds:
                raise DescriptorError(
                    f"Kind {kind.message} is claimed twice, the second time by {service.name}."
                )
            kinds[kind.message] = kind
    return kinds


def endpoints(services: Sequence[Service], runtime: Runtime) -> dict[str, Endpoint]:
    """Everything that is served, by method path."""
    table = {endpoint.rpc.path: endpoint for endpoint in _operation_endpoints(runtime)}
    own = {method.path.removeprefix("/"): method for service in services for method in service.methods}
    if len(own) != sum(len(service.methods) for service in services):
        raise DescriptorError("Two services have a Method for the same path.")
    for kind in runtime.kinds.values():
        for endpoint in _kind_endpoints(runtime, kind, frozenset(own)):
            table[endpoint.rpc.path] = endpoint
    for method in own.values():
        table[method.path.removeprefix("/")] = _custom_endpoint(runtime, method)
    for alias in (alias for service in services for alias in service.aliases):
        if alias.path in table:
            raise DescriptorError(f"{alias.path} is claimed twice, the second time by an alias.")
        table[alias.path] = _alias_endpoint(table, alias)
    table[try_create.PATH] = _try_endpoint(runtime, table)
    return table


def _try_endpoint(runtime: Runtime, table: Mapping[str, Endpoint]) -> Endpoint:
    creates = {path: endpoint.serve for path, endpoint in table.items() if isinstance(endpoint.serve, Create)}
    by_path = {path: serve.descriptor for path, serve in creates.items()}
    serve = try_create.TryCreate(runtime, by_path)
    return Endpoint(_method(try_create.PATH), serve, is_change=True)  # so that refusals are recorded


def _kind_endpoints(runtime: Runtime, kind: Kind, replaced: frozenset[str]) -> Iterator[Endpoint]:
    descriptor = descriptor_of(kind)
    unknown = kind.verbs - _VERBS.keys()
    if unknown:
        raise DescriptorError(
            f"{kind.message}: {', '.join(sorted(unknown))} is not a standard verb; give it a Method."
        )
    for verb in sorted(kind.verbs & descriptor.rpcs.keys()):
        rpc = descriptor.rpcs[verb]
        if rpc.path in replaced:
            continue
        if verb in _CHANGES:
            require_operation_answer(rpc)
        more = kind.larger_request_bytes if verb in _CHANGES else 0
        yield Endpoint(
            rpc,
            _VERBS[verb](runtime, descriptor),
            is_change=verb in _CHANGES,
            max_bytes=MAX_REQUEST_BYTES + more,
        )
    for verb, path in kind.method_overrides.items():
        require_operation_answer(_method(path))
        yield Endpoint(_method(path), _VERBS[verb](runtime, descriptor), is_change=True)
    if _BY_PARENT in descriptor.rpcs:
        serve = ListOperationsByParent(runtime, kind.message, kind.permission)
        yield Endpoint(descriptor.rpcs[_BY_PARENT], serve)


def _operation_endpoints(runtime: Runtime) -> Iterator[Endpoint]:
    for service in SERVICES:
        yield Endpoint(contract.method(f"{service}/Get"), GetOperation(runtime))
        yield Endpoint(contract.method(f"{service}/List"), ListOperations(runtime))


def _alias_endpoint(table: Mapping[str, Endpoint], alias: MethodAlias) -> Endpoint:
    other = table.get(alias.of)
    if other is None:
        raise DescriptorError(f"{alias.path} is an alias of {alias.of}, which is not served.")
    rpc = _method(alias.path)
    if alias.answer is None and rpc.output is not other.rpc.output:
        raise DescriptorError(
            f"{alias.path} answers with another message than {alias.of}; give the alias an answer."
        )
    return Endpoint(rpc, AliasEndpoint(alias, other), is_change=other.is_change, max_bytes=other.max_bytes)


def _method(path: str) -> contract.Rpc:
    try:
        return contract.method(path)
    except LookupError as error:
        raise DescriptorError(f"{error} A service has a Method for it.") from None


def _custom_endpoint(runtime: Runtime, method: AnyMethod) -> Endpoint:
    is_public = method.permission is None
    return Endpoint(
        _method(method.path),
        Custom(runtime, method),
        is_public=is_public,
        is_change=method.is_change,
        is_internal=method.is_internal,
        max_bytes=MAX_REQUEST_BYTES + method.larger_request_bytes,
    )
