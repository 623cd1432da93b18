"""The parts of one host with serial numbers and firmware, and what differs between two lists of them.

A part is known by its serial number, so one that moved to another host or slot is still the same. The reader
is for what a host sent, which may be anything.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from neocloud.fleet.agent.child import Children, Job
from neocloud.fleet.agent.document import (
    FORMAT,
    LONGEST_NAME,
    LONGEST_TEXT,
    MOST_BYTES,
    DocumentError,
    Fields,
    NotRun,
)
from neocloud.fleet.agent.host_files import Tree
from neocloud.fleet.agent.probe_result import ProbeResult
from neocloud.fleet.agent.probes import gpus
from neocloud.fleet.nodes.parts import HostPart

MOST_PARTS = 1024
DEADLINE_S = 20.0
DMI = "sys/class/dmi/id"
NET = "sys/class/net"
INFINIBAND = "sys/class/infiniband"
NVME = "sys/class/nvme"
PLACEHOLDERS = frozenset({"none", "not specified", "to be filled by o.e.m.", "default string", "0", "n/a"})
"""Texts of makers who do not number their parts; two hosts with such a number are not the same."""


@dataclass(frozen=True)
class Hardware:
    host: str
    boot: str
    parts: Sequence[HostPart]
    not_run: Sequence[NotRun] = ()
    simulated: str = ""


@dataclass(frozen=True)
class Difference:
    """A change from an earlier list of the same host, in words."""

    part: HostPart
    what: str


def read(tree: Tree, host: str, children: Children | None = None, *, is_pod: bool = False) -> Hardware:
    """Return the parts of a host. Drivers are asked in processes with a deadline. Raises OSError.

    `is_pod`: only the GPUs that belong to this container. The files of `/sys` and `/proc` are the host's.
    """
    jobs = [Job("gpus", lambda: gpus.parts(tree), DEADLINE_S)]
    if not is_pod:
        jobs.append(Job("files", lambda: _of_files(tree), DEADLINE_S))
    parts, not_run = list[HostPart](), list[NotRun]()
    simulated = "" if tree.is_host else f"files below {tree.root} were read"[:LONGEST_TEXT]
    for outcome in (children or Children()).run(jobs):
        if outcome.found is None:
            not_run.append(NotRun(outcome.name, outcome.why[:LONGEST_TEXT]))
            continue
        parts += [HostPart(*(_printable(text) for text in each)) for each in outcome.found.parts]
        not_run += [NotRun(each.check, each.why) for each in outcome.found.not_run]
        simulated = simulated or outcome.found.simulated
    ordered = sorted(parts, key=lambda each: (each.kind, each.slot))[:MOST_PARTS]
    return Hardware(host, tree.boot_id(), ordered, sorted(not_run, key=lambda each: each.check), simulated)


def _of_files(tree: Tree) -> ProbeResult:
    found = ProbeResult()
    found.parts += [*_board(tree), *_processors(tree), *_disks(tree), *_adapters(tree)]
    if tree.exists(DMI) and tree.optional(f"{DMI}/product_serial") is None:
        found.leave_out("The serial number of the host is for root alone", "system serial")
    return found


def _text(tree: Tree, name: str) -> str:
    """Return what a file says, printable and bounded; "" for what makers write who say nothing."""
    text = (tree.optional(name) or "").strip()
    shown = _printable(text)
    return "" if shown.lower() in PLACEHOLDERS else shown


def _printable(text: str) -> str:
    return "".join(each for each in text if each.isprintable())[:LONGEST_NAME]


def _board(tree: Tree) -> Iterator[HostPart]:
    if tree.exists(DMI):
        yield HostPart(
            "system", "host", _text(tree, f"{DMI}/product_name"), _text(tree, f"{DMI}/product_serial"),
            _text(tree, f"{DMI}/bios_version"),
        )  # fmt: skip
        if board := _text(tree, f"{DMI}/board_name"):
            yield HostPart("board", "host", board, _text(tree, f"{DMI}/board_serial"))


def _processors(tree: Tree) -> Iterator[HostPart]:
    """One for each socket; a processor does not tell its serial number."""
    sockets = dict[str, HostPart]()
    fields = dict[str, str]()
    for line in [*(tree.optional("proc/cpuinfo") or "").splitlines(), ""]:
        name, colon, value = line.partition(":")
        if colon:
            fields[name.strip()] = value.strip()[:LONGEST_NAME]
        elif fields:
            slot = f"socket {fields.get('physical id', '0')}"
            sockets[slot] = HostPart(
                "cpu", slot, fields.get("model name", ""), "", fields.get("microcode", "")
            )
            fields = {}
    yield from sockets.values()


def _disks(tree: Tree) -> Iterator[HostPart]:
    for name in tree.names(NVME):
        folder = f"{NVME}/{name}"
        model, serial = _text(tree, f"{folder}/model"), _text(tree, f"{folder}/serial")
        yield HostPart("nvme", name, model, serial, _text(tree, f"{folder}/firmware_rev"))


def _adapters(tree: Tree) -> Iterator[HostPart]:
    for name in tree.names(INFINIBAND):
        folder = f"{INFINIBAND}/{name}"
        kind = _text(tree, f"{folder}/hca_type") or _text(tree, f"{folder}/board_id")
        yield HostPart("hca", name, kind, _text(tree, f"{folder}/node_guid"), _text(tree, f"{folder}/fw_ver"))
    for name in tree.names(NET):
        folder = f"{NET}/{name}"
        if not tree.exists(f"{folder}/device/vendor"):
            continue  # a bridge or tunnel is not a part
        ids = (_text(tree, f"{folder}/device/{each}").removeprefix("0x") for each in ("vendor", "device"))
        yield HostPart("nic", name, ":".join(ids), _text(tree, f"{folder}/address"))


def encode(found: Hardware) -> bytes:
    """Return the list as `decode` takes it."""
    return json.dumps(to_json(found), ensure_ascii=False).encode()


def to_json(found: Hardware) -> dict[str, Any]:
    """Return the list as `from_json` takes it."""
    parts = [each._asdict() for each in found.parts]
    return {"format": FORMAT, **asdict(found), "parts": parts}


def decode(data: bytes) -> Hardware:
    """Return the list that a host sent. Raises DocumentError."""
    if len(data) > MOST_BYTES:
        raise DocumentError(f"it has more than {MOST_BYTES:,} bytes")
    try:
        given: object = json.loads(data)
    except RecursionError:
        raise DocumentError("it is nested too deeply") from None
    except ValueError as error:
        raise DocumentError(str(error)[:200]) from None
    return from_json(given)


def from_json(given: object, *, host: str | None = None) -> Hardware:
    """Return the hardware in decoded JSON; checks it as `decode` does. `host`: who the sender is known to be.
    Raises DocumentError.
    """
    fields = Fields(given, "the inventory")
    if fields.number("format") != FORMAT:
        raise DocumentError(f"its format is not {FORMAT}, which this release reads")
    found = Hardware(
        fields.text("host", LONGEST_NAME),
        fields.text("boot", LONGEST_NAME),
        [_part(each) for each in fields.rows("parts", MOST_PARTS)],
        [_not_run(each) for each in fields.rows("not_run", MOST_PARTS)],
        fields.text("simulated"),
    )
    fields.finish()
    if host is not None and found.host != host:
        raise DocumentError(f"the inventory is of host {found.host!r}, and {host!r} sent it")
    return found


def _part(fields: Fields) -> HostPart:
    names = ("kind", "slot", "model", "serial", "firmware")
    part = HostPart(*(fields.text(each, LONGEST_TEXT) for each in names))
    fields.finish()
    return part


def _not_run(fields: Fields) -> NotRun:
    said = NotRun(fields.text("check", LONGEST_NAME), fields.text("why"))
    fields.finish()
    return said


def differences(before: Hardware, now: Hardware) -> list[Difference]:
    """Return what changed in a host: parts that came, went, moved or have other firmware."""
    old, new = _by_key(before.parts), _by_key(now.parts)
    found = [Difference(old[key], "removed") for key in old.keys() - new.keys()]
    for key, part in new.items():
        was = old.get(key)
        if was is None:
            found.append(Difference(part, "added"))
        elif was.firmware != part.firmware:
            found.append(Difference(part, f"firmware {was.firmware or 'unknown'} before"))
        elif was.slot != part.slot:
            found.append(Difference(part, f"in {was.slot} before"))
    return sorted(found, key=lambda each: (each.part.kind, each.part.slot, each.what != "removed"))


def shared_serials(hosts: Sequence[Hardware]) -> Mapping[tuple[str, str], Sequence[str]]:
    """Return the parts (kind, serial) that several hosts say they have, with the hosts' names.

    One of them lies, has an old list, or is another host under a second name.
    """
    places = dict[tuple[str, str], list[str]]()
    for host in hosts:
        for part in host.parts:
            names = places.setdefault((part.kind, part.serial), [])
            if part.serial and host.host not in names:
                names.append(host.host)
    return {key: names for key, names in places.items() if len(names) > 1}


def _by_key(parts: Sequence[HostPart]) -> dict[tuple[str, str], HostPart]:
    """Return the parts by serial number, and by slot and model where a part does not tell one."""
    return {(each.kind, each.serial or f"{each.slot} {each.model}"): each for each in parts}
