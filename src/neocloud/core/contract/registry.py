"""Message classes and methods of the contract, from one private descriptor pool.

The pool is loaded at the first look-up and never changes afterwards: it is module data like generated code.
Being private it cannot clash with generated code of other libraries in the process, and for the same reason
its messages must not be mixed with stock ones such as `google.protobuf.timestamp_pb2.Timestamp`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from neocloud.core.contract.cache import descriptor_set


@dataclass(frozen=True)
class Rpc:
    """One method; `path` is "package.Service/Name", `input` and `output` are message classes."""

    path: str
    service: str
    name: str
    input: Any
    output: Any


@dataclass(frozen=True)
class _Loaded:
    pool: DescriptorPool
    files: tuple[str, ...]


@cache
def _loaded() -> _Loaded:
    files = FileDescriptorSet.FromString(descriptor_set()).file
    pool = DescriptorPool()
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
    return _Loaded(pool, tuple(file.name for file in files))


def pool() -> DescriptorPool:
    return _loaded().pool


@cache
def message(full_name: str) -> Any:
    """The class of a message, as `message("neocloud.slurm.v1.Cluster")`."""
    try:
        descriptor = pool().FindMessageTypeByName(full_name)
    except KeyError:
        raise LookupError(f"The contract has no message {full_name}.") from None
    return message_factory.GetMessageClass(descriptor)


@cache
def enum(full_name: str) -> EnumTypeWrapper:
    """Names and numbers of an enum: `enum("...ClusterStatus.State").Name(2)`."""
    try:
        return EnumTypeWrapper(pool().FindEnumTypeByName(full_name))
    except KeyError:
        raise LookupError(f"The contract has no enum {full_name}.") from None


@cache
def _packages() -> frozenset[str]:
    """All protobuf packages of the contract, with those that only hold others."""
    names = {pool().FindFileByName(name).package for name in _loaded().files}
    return frozenset(name[:end] for name in names for end in _ends(name))


def _ends(package: str) -> list[int]:
    return [index for index, character in enumerate(package) if character == "."] + [len(package)]


def has_package(name: str) -> bool:
    return name in _packages()


@cache
def services() -> Mapping[str, tuple[Rpc, ...]]:
    """All services of the contract with their methods, by full name."""
    found: dict[str, tuple[Rpc, ...]] = {}
    for name in _loaded().files:
        for service in pool().FindFileByName(name).services_by_name.values():
            found[service.full_name] = tuple(_rpc(method) for method in service.methods)
    return MappingProxyType(found)


@cache
def methods() -> Mapping[str, Rpc]:
    """All methods of the contract by path."""
    return MappingProxyType({rpc.path: rpc for rpcs in services().values() for rpc in rpcs})


def method(path: str) -> Rpc:
    try:
        return methods()[path.removeprefix("/")]
    except KeyError:
        raise LookupError(f"The contract has no method {path}.") from None


def _rpc(descriptor: Any) -> Rpc:
    service = descriptor.containing_service.full_name
    return Rpc(
        path=f"{service}/{descriptor.name}",
        service=service,
        name=descriptor.name,
        input=message_factory.GetMessageClass(descriptor.input_type),
        output=message_factory.GetMessageClass(descriptor.output_type),
    )
