"""Message classes and methods of the contract, from one private descriptor pool; and ids of resources.

The pool is loaded at the first look-up and never changes afterwards: it is module data like generated code.
Being private it cannot clash with generated code of other libraries in the process, and for the same reason
its messages must not be mixed with stock ones such as `google.protobuf.timestamp_pb2.Timestamp`: times and
packed messages are made here too.

Ids follow the contract's grammar, `<type>-<routing><weak>`, such as "computedisk-e00k3v...". The type tells a
reader what the id stands for; the routing code stands for the installation. The rest is random.
"""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message

from neocloud.core.contract.cache import descriptor_set

if TYPE_CHECKING:
    from google._upb._message import Descriptor as _UpbDescriptor
    from google._upb._message import FieldDescriptor as _UpbFieldDescriptor
    from google.protobuf.any_pb2 import Any as PackedMessage
    from google.protobuf.timestamp_pb2 import Timestamp

    MessageType = Descriptor | _UpbDescriptor
    Field = FieldDescriptor | _UpbFieldDescriptor
else:
    MessageType, Field = Descriptor, FieldDescriptor


_TYPE_URL = "type.googleapis.com/"
ROUTING_CODE = "e00"
MAX_ID_LENGTH = 1024
_ID_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # 32 of them; no i, l, o, u: ids are retyped
_ID_WEAK_LENGTH = 20
_ID = re.compile(
    r"[a-z][a-z0-9]{1,49}-[a-z][a-z0-9]{2}(?=.{2,72}(--|$))-?[a-z0-9]+(-[a-z0-9]+)*(--[a-z0-9-]+)?"
)
_ID_TYPE = re.compile(r"[a-z][a-z0-9]{1,49}")


@dataclass(frozen=True)
class Rpc:
    """One method; `path` is "package.Service/Name", `input` and `output` are message classes."""

    path: str
    service: str
    name: str
    input: type[Any]
    output: type[Any]


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
    """Return the class of a message, as in `message("neocloud.slurm.v1.Cluster")`.

    For names that are known only at run time; others are imported from `neocloud.messages`.
    """
    try:
        descriptor = pool().FindMessageTypeByName(full_name)
    except KeyError:
        raise LookupError(f"The contract has no message {full_name}.") from None
    return message_factory.GetMessageClass(descriptor)


@cache
def enum(full_name: str) -> EnumTypeWrapper:
    """Return the names and numbers of an enum: `enum("...ClusterStatus.State").Name(2)`."""
    try:
        return EnumTypeWrapper(pool().FindEnumTypeByName(full_name))
    except KeyError:
        raise LookupError(f"The contract has no enum {full_name}.") from None


def enum_name(message: Message, field: str) -> str:
    """Return the name of the value that an enum field of a message has: "READY"."""
    described = message.DESCRIPTOR.fields_by_name[field].enum_type
    assert described is not None
    return described.values_by_number[getattr(message, field)].name


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
    """Return all services of the contract with their methods, by full name."""
    found: dict[str, tuple[Rpc, ...]] = {}
    for name in _loaded().files:
        for service in pool().FindFileByName(name).services_by_name.values():
            found[service.full_name] = tuple(_rpc(method) for method in service.methods)
    return MappingProxyType(found)


@cache
def methods() -> Mapping[str, Rpc]:
    """Return all methods of the contract by path."""
    return MappingProxyType({rpc.path: rpc for rpcs in services().values() for rpc in rpcs})


def method(path: str) -> Rpc:
    try:
        return methods()[path.removeprefix("/")]
    except KeyError:
        raise LookupError(f"The contract has no method {path}.") from None


def _rpc(descriptor: MethodDescriptor) -> Rpc:
    service = descriptor.containing_service.full_name
    return Rpc(
        path=f"{service}/{descriptor.name}",
        service=service,
        name=descriptor.name,
        input=message_factory.GetMessageClass(descriptor.input_type),
        output=message_factory.GetMessageClass(descriptor.output_type),
    )


@cache
def api_host_names() -> tuple[str, ...]:
    """Return the host names, below the domain of an API, where clients look for its services, sorted.

    A client puts a service's name before the domain it was given: `compute` and `api.example.com` make
    `compute.api.example.com`. The name is the contract's `api_service_name`, else the second part of the
    package. Names differ in depth, so one wildcard certificate does not cover them.
    """
    return tuple(sorted({_host_name(service) for service in services()}))


def _host_name(service: str) -> str:
    descriptor: Any = pool().FindServiceByName(service)
    options = message("google.protobuf.ServiceOptions").FromString(
        descriptor.GetOptions().SerializeToString()
    )
    extension = pool().FindExtensionByName("nebius.api_service_name")
    return options.Extensions[extension] or service.split(".")[1]


def timestamp(moment: datetime) -> "Timestamp":
    """Return the Timestamp of an aware datetime."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone; use datetimes in UTC.")
    result = message("google.protobuf.Timestamp")()
    result.FromDatetime(moment)
    return result


def to_datetime(value: "Timestamp") -> datetime:
    """Return the aware datetime in UTC of a Timestamp; nanoseconds are cut to microseconds."""
    return value.ToDatetime(tzinfo=UTC)


def pack(value: Message) -> "PackedMessage":
    """Return the message in a google.protobuf.Any."""
    return message("google.protobuf.Any")(
        type_url=_TYPE_URL + value.DESCRIPTOR.full_name, value=value.SerializeToString()
    )


def unpack(packed: "PackedMessage") -> Any:
    """Return the message in a google.protobuf.Any. Raise LookupError when the contract lacks its type."""
    return message(packed.type_url.rpartition("/")[2]).FromString(packed.value)


def new_id(prefix: str) -> str:
    """Return a new random id of this type."""
    if not _ID_TYPE.fullmatch(prefix):
        raise ValueError(f"{prefix!r} cannot be the type of an id: a letter, then 1 to 49 of a-z0-9.")
    weak = "".join(_ID_ALPHABET[byte % len(_ID_ALPHABET)] for byte in secrets.token_bytes(_ID_WEAK_LENGTH))
    return f"{prefix}-{ROUTING_CODE}{weak}"


def is_id(text: str) -> bool:
    return len(text) <= MAX_ID_LENGTH and _ID.fullmatch(text) is not None


def id_prefix(identifier: str) -> str:
    """Return the type part of an id; "" when the text has none."""
    prefix, dash, _ = identifier.partition("-")
    return prefix if dash else ""
