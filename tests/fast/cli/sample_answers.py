"""A sample of every message of the contract, so that each command has something to show.

Every field is set: names, ids, long texts, large numbers. What a command parses further (a price, an address)
has a value of that form.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from neocloud.core import contract
from tests.fast.cli.fake_control_plane import EXCHANGE, FakeServer

ITEMS = 3
DEEPEST = 6
LONG_TEXT = "the node did not answer for 41 s; its processes were ended, and the job was requeued once"
ID = "computeinstance-e00a8pf1j9p1csvace2c14"
TEXTS: Mapping[str, str] = {
    "id": ID,
    "name": "research-training-n",
    "state": "RUNNING",
    "email": "ann.smith-of-research@bank.example",
    "address": "10.128.120.96/32",
    "cidr": "10.128.0.0/16",
    "cost": "1234.567890",
    "price": "0.000123",
    "quantity": "98765.432100",
    "amount": "1234.567890",
    "currency": "USD",
    "cluster_name": "bank",
    "command": "python3",
    "public_keys": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHVzZXI ann@bank.example",
    "unit": "million-tokens",
    "json": '{"at": 1795883650.5, "type": "drained", "reason": "the GPU fell off the bus"}',
    **dict.fromkeys(("minimum", "usual", "maximum", "usage_percentage", "units", "unit_price"), "12"),
}
OPEN_ENDS = frozenset({"neocloud.fleet.v1.PartPlace"})
"""Messages of something that has not ended: `until` is not set."""
ENDINGS = {
    "_id": ID,
    "_cost": "1234.567890",
    "_price": "0.000123",
    "_amount": "1234.567890",
    "_quantity": "7.5",
}
NAMES: Mapping[str, str] = {"neocloud.slurm.v1.LoginNodeStatus": "login"}
"""Messages whose names have a form that commands look at."""
LONG_TEXTS = ("message", "reason", "description", "why", "details", "problem", "evidence", "text", "note")


HOSTILE = "\nFORGED   READY\r\x1b[2J\u2028FORGED"
"""What somebody writes into a text to add a row of their own."""


def sample(descriptor: Descriptor, number: int = 1, depth: int = 0, hostile: str = "") -> dict[str, Any]:
    """Return a message in its JSON form. `hostile` is added to each free text."""
    found: dict[str, Any] = {}
    for field in descriptor.fields:
        group = field.containing_oneof
        if group is not None and group.fields[0].name != field.name:
            continue
        if field.message_type is not None and depth >= DEEPEST:
            continue
        if field.name == "next_page_token" or (field.name == "until" and descriptor.full_name in OPEN_ENDS):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value = field.message_type.fields_by_name["value"]
            found[field.name] = {"team": _one(value, number, depth + 1, hostile)}
        elif field.is_repeated:
            count = ITEMS if depth == 0 else 2
            found[field.name] = [
                _one(field, number * 10 + each, depth + 1, hostile) for each in range(1, count + 1)
            ]
        else:
            found[field.name] = _one(field, number, depth + 1, hostile)
    return found


def _one(field: FieldDescriptor, number: int, depth: int, hostile: str) -> Any:
    message = field.message_type
    if message is not None and message.full_name == "google.protobuf.Timestamp":
        return f"2026-11-28T16:34:{number % 60:02d}.123456Z"
    if message is not None and message.full_name == "google.protobuf.Duration":
        return "86461s"
    if message is not None and message.full_name.startswith("google.protobuf."):
        return {}
    if message is not None:
        named = NAMES.get(message.full_name)
        return {**sample(message, number, depth, hostile), **({"name": f"{named}-{number}"} if named else {})}
    if field.enum_type is not None:
        values = [value.name for value in field.enum_type.values if value.number]
        return max(values, key=len) if number % 2 else values[number % len(values)]
    if field.cpp_type == field.CPPTYPE_BOOL:
        return True
    if field.cpp_type == field.CPPTYPE_STRING:
        return "c2FtcGxl" if field.type == field.TYPE_BYTES else _text(field.name, number, hostile)
    if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return 0.4321
    return 1_234_560 + number


def _text(name: str, number: int, hostile: str) -> str:
    if name in TEXTS:
        return f"{TEXTS[name]}{number}" if name == "name" else TEXTS[name]
    if name.startswith(("cost", "price")) or "_per_" in name:
        return TEXTS["cost"]
    for ending, text in ENDINGS.items():
        if name.endswith(ending):
            return text
    text = f"{LONG_TEXT} ({number})" if name in LONG_TEXTS else f"value-of-{name.replace('_', '-')}-{number}"
    return text + hostile


class _Methods(dict[str, Any]):
    """Answers every method of the contract; a test sets those that need another answer."""

    hostile = ""

    def __contains__(self, path: object) -> bool:
        return super().__contains__(path) or isinstance(path, str)

    def __missing__(self, path: str) -> Any:
        return lambda request: _answer(path, self.hostile)


@cache
def _answer(path: str, hostile: str) -> Any:
    output = contract.method(path).output
    return contract.from_dict(output, sample(output.DESCRIPTOR, hostile=hostile))


def answer_everything(cloud: FakeServer, hostile: str = "") -> None:
    cloud.methods = _Methods({EXCHANGE: cloud.methods[EXCHANGE]})
    cloud.methods.hostile = hostile
