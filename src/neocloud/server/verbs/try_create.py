"""Try a request to create a resource of any kind: all that Create checks, in a transaction that is undone."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from google.protobuf.message import DecodeError, Message

from neocloud.core import contract, wire
from neocloud.core.store.protocol import Transaction
from neocloud.server.request import KindDescriptor, Request, Runtime
from neocloud.server.validation import check
from neocloud.server.verbs.create import Create

PATH = "neocloud.common.v1.TrialService/TryCreate"


class _Tried(Exception):
    """Ends the transaction, of which nothing is kept, with what it would have created."""

    def __init__(self, resource: Any) -> None:
        super().__init__()
        self.resource = resource


class TryCreate:
    def __init__(self, runtime: Runtime, served: Mapping[str, KindDescriptor]) -> None:
        """`served`: the kinds with the standard Create, by the paths of their methods."""
        self._runtime = runtime
        self._served = {
            contract.method(path).input.DESCRIPTOR.full_name: (path, each) for path, each in served.items()
        }

    async def __call__(self, request: Request) -> Message:
        check(request.message)
        wanted = _unpacked(request.message.request)
        path, descriptor = self._served.get(wanted.DESCRIPTOR.full_name, ("", None))
        if descriptor is None:
            raise contract.bad_field(
                "request", f"is a {wanted.DESCRIPTOR.full_name}, which creates nothing here"
            )
        inner = replace(request, rpc=contract.method(path), message=wanted, original_message=None)
        create = Create(self._runtime, descriptor)
        work = await create.work_of(inner, frozenset(request.message.assumed_fields))

        def attempt(tx: Transaction) -> Message:
            row = tx.get(work(tx).operation.resource_id)
            raise _Tried(row and wire.resource_message(row))

        try:
            return await self._runtime.store.write(attempt)
        except _Tried as tried:
            return request.rpc.output(resource=contract.pack(_shown(tried.resource)))


def _unpacked(packed: Any) -> Any:
    try:
        return contract.unpack(packed)
    except (LookupError, DecodeError):
        raise contract.bad_field("request", "is not a request of this API") from None


def _shown(resource: Any) -> Message:
    for name in ("id", "created_at", "updated_at", "resource_version"):
        resource.metadata.ClearField(name)
    if "status" in resource.DESCRIPTOR.fields_by_name:
        resource.ClearField("status")
    return contract.redact(resource)
