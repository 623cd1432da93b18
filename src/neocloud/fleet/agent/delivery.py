"""Deliver the records of an agent to the control plane, and acknowledge them.

The caller names the last record that it has stored. The agent drops the records up to it, and returns the
current results of its checks and the records after it. So records are dropped only once they are stored: a
caller that cannot store them asks for the same again. Numbers belong to one spool, which begins again at each
start; its id keeps numbers of another one from being taken for its own.
"""

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neocloud.core.json_values import as_object, is_number
from neocloud.core.osfiles import create_file, write_file
from neocloud.fleet.agent import document, gpu_use_json, hardware
from neocloud.fleet.agent.document import Document, DocumentError
from neocloud.fleet.agent.hardware import Hardware
from neocloud.fleet.agent.spool import ACKNOWLEDGED, RECORDS, records_in
from neocloud.fleet.nodes.events import Status, Verdict
from neocloud.fleet.nodes.gpu_use import GpuUse

FORMAT = 1
ID, LAST, FAILING, TRUSTED, INVENTORY = "id", "document.json", "failing", "trusted", "inventory.json"
MOST_BYTES = 2 << 20
"""Limit of an answer."""
MOST_RECORDS_BYTES = 1 << 20
LONGEST_PROBLEM = 160
CHANGES = "changes"
_HASH = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class AgentAnswer:
    """The answer of an agent."""

    spool: str
    version: str
    """Hash of the program that answered."""
    last: Document | None
    """Answers of its checks when they last ran; None before they have."""
    age_s: float
    """Age of `last`."""
    changes: Sequence[Document]
    """The records that were not forwarded yet, in order."""
    n: int
    """The last record that `changes` is from: to be named when the agent is asked again."""
    has_more: bool
    inventory: Hardware | None = None
    """The parts; None where the asker has named the inventory that it has, and it is this one."""
    inventory_id: str = ""
    gpus: Sequence[GpuUse] = ()
    """How much they were used when that was read last."""
    gpus_age_s: float = 0.0
    simulated: str = ""
    """The simulated part of `gpus`."""


def answer(
    spool: Path,
    last: Path,
    program: Path,
    *,
    after: int,
    of: str,
    trusted: str,
    now: float,
    inventory: str = "",
) -> bytes:
    """Take note of what the asker has kept and trusts, and return what is new. Raises OSError.

    `inventory`: the id of the inventory that the asker has.
    """
    name = _id_of(spool)
    if name == of and after > 0:
        write_file(spool / ACKNOWLEDGED, str(after), durable=True)
    if last.is_dir():
        write_file(last / TRUSTED, trusted)
    kept, records = after if name == of else 0, list[object]()
    n, room, has_more = kept, MOST_RECORDS_BYTES, False
    for record in _records_after(spool, kept):
        size = len(json.dumps(record))
        if size > room:
            has_more = True
            break
        room, n = room - size, record["n"]
        if record.get("kind") == CHANGES:
            records.append(record["document"])
    said = {
        "format": FORMAT,
        "spool": name,
        "version": hashlib.sha256(program.read_bytes()).hexdigest(),
        "now_s": now,
        "last": _last(last / LAST),
        "changes": records,
        "n": n,
        "has_more": has_more,
        "inventory": _inventory(last / INVENTORY, inventory),
        "gpus": _last(last / gpu_use_json.FILE),
    }
    return json.dumps(said).encode()


def _id_of(spool: Path) -> str:
    """Return the id of the spool, which its first asker makes. Raises OSError."""
    spool.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (spool / ID).exists():
        create_file(spool / ID, secrets.token_hex(8))
    return (spool / ID).read_text()


def _records_after(spool: Path, n: int) -> Iterable[dict[str, Any]]:
    return records_in(spool / RECORDS, n) if (spool / RECORDS).exists() else ()


def _last(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _inventory(path: Path, known: str) -> dict[str, object] | None:
    try:
        data = path.read_bytes()
        name = hashlib.sha256(data).hexdigest()
        return {"id": name, "found": json.loads(data)} if name != known else None
    except (OSError, ValueError):
        return None


def write_inventory(folder: Path, found: Hardware) -> None:
    """Write the parts for the next caller, if they have changed. Raises OSError."""
    folder.mkdir(mode=0o700, exist_ok=True)
    path, data = folder / INVENTORY, hardware.encode(found)
    if not path.exists() or path.read_bytes() != data:
        write_file(path, data)


def write_last(folder: Path, said: Document) -> None:
    """Write what the checks say now, and what of it is a reason to start no job. Raises OSError.

    `failing` is for shell programs: the time, and then the failing checks that the control plane trusts.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    trusted = (folder / TRUSTED).read_text().split(",") if (folder / TRUSTED).exists() else []
    write_file(folder / LAST, document.encode(said))
    lines = [
        problem_of(each) for each in said.verdicts if each.status is Status.FAIL and each.check in trusted
    ]
    write_file(folder / FAILING, f"{int(said.at)}\n{'; '.join(lines)[:LONGEST_PROBLEM]}\n")


def problem_of(verdict: Verdict) -> str:
    """Return a failing check in words for a user, who sees that it is not of their making."""
    sample = "".join(each if " " <= each <= "~" else "?" for each in verdict.sample)
    return f"{verdict.scope} problem: {verdict.check}: {sample}"


def decode(data: bytes, *, host: str, at: float) -> AgentAnswer:
    """Return the answer of a host's agent that came at a time of the receiver's clock. Raises DocumentError.

    A verdict is as old as the agent says by its clock since the boot, and never of the future.
    """
    if len(data) > MOST_BYTES:
        raise DocumentError(f"it has more than {MOST_BYTES:,} bytes")
    try:
        fields: dict[str, Any] = json.loads(data)
        if fields["format"] != FORMAT:
            raise DocumentError(f"its format is not {FORMAT}, which this release reads")
        now, n, has_more = fields["now_s"], fields["n"], fields["has_more"]
        spool, version, last, changes = (fields[each] for each in ("spool", "version", "last", "changes"))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        if isinstance(error, DocumentError):
            raise
        raise DocumentError(f"it is not an answer of an agent: {error!r}"[:200]) from None
    is_sound = (
        type(now) in (int, float)
        and type(n) is int
        and 0 <= n < document.LATEST
        and all(isinstance(each, str) and 0 < len(each) <= document.LONGEST_NAME for each in (spool, version))
        and isinstance(changes, list)
        and type(has_more) is bool
    )
    if not is_sound:
        raise DocumentError("a field is not of its type")
    given_documents: list[object] = [*changes, *([last] if last is not None else [])]
    read = [_dated(each, host, at, now) for each in given_documents]
    newest = read.pop() if last is not None else None
    age = max(0.0, now - newest.since_boot_s) if newest else 0.0
    name, inventory = _inventory_of(fields.get("inventory"), host)
    gpus = gpu_use_json.from_json(fields.get("gpus"))
    gpus_age = max(0.0, now - gpus.since_boot_s)
    return AgentAnswer(
        *(spool, version, newest, age, read, n, has_more, inventory, name),
        *(gpus.gpus, gpus_age, gpus.simulated),
    )


def _inventory_of(given: object, host: str) -> tuple[str, Hardware | None]:
    """Return the inventory of an answer with its id. An agent of an earlier release has none."""
    if given is None:
        return "", None
    fields = document.Fields(given, "the answer's inventory")
    name = fields.text("id", document.LONGEST_NAME)
    if not _HASH.fullmatch(name):
        raise DocumentError("the id of its inventory is not a hash")
    found = hardware.from_json(fields.value("found"), host=host)
    fields.finish()
    return name, found


def _dated(given: object, host: str, at: float, now: float) -> Document:
    """Return a document whose verdicts have their time by the receiver's clock."""
    found = as_object(given)
    since_boot = found.get("since_boot_s")
    if not is_number(since_boot):
        raise DocumentError("a document says not when it is from")
    age = max(0.0, now - since_boot)
    return document.from_json(found, host=host, at=max(0.0, at - age))


def read_program(path: str) -> Path:
    """Return the file that runs: the archive, or this module where it is installed as a package."""
    return Path(path) if os.path.isfile(path) else Path(__file__)
