"""Reads `lineage.json`, what a job says of itself. Pure.

The job's user can write that file. So each value is checked, texts and lists are bounded, and whatever has
another form than recipes write counts as not recorded.
"""

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from neocloud.core import contract
from neocloud.core.json_values import as_list, as_object, is_number
from neocloud.messages.neocloud.tuning.v1 import DescribedCheckpoint, FileDigest, JobDescription

MOST_BYTES = 256 * 1024
"""The largest file that is read."""
LONGEST_TEXT = 200
MOST_ENTRIES = 64
"""Entries of a map."""
MOST_CHECKPOINTS = 1000
LARGEST = 2**62
LATEST_SECONDS = 4_102_444_800.0
"""The year 2100."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PARTS = ("source", "validation_source", "training", "held_out")

Row = Mapping[str, object]


def read_description(document: Row) -> JobDescription | None:
    """Return the description; None where the document is none."""
    if document.get("format") != 1:
        return None
    recipe, data = as_object(document.get("recipe")), as_object(document.get("data"))
    machine, split = as_object(document.get("machine")), as_object(data.get("split"))
    found = JobDescription(
        recipe_sha256=_sha256(recipe.get("sha256")),
        held_out=_text(split.get("held_out")),
        seed=_whole(document.get("seed")),
        nodes=_text(machine.get("nodes")),
        node_count=_whole(machine.get("node_count")),
        processes=_whole(machine.get("processes")),
        threads=_text(machine.get("threads")),
        processor=_text(machine.get("processor")),
        device=_text(machine.get("device")),
        adapter_sha256=_sha256(document.get("adapter_sha256")),
        checkpoints=_checkpoints(document.get("checkpoints")),
    )
    found.packages.update(_entries(recipe.get("packages")))
    found.settings.update(_entries(document.get("settings")))
    for name, value in _items(data.get("left_out")):
        found.left_out[name] = _whole(value)
    for name in _PARTS:
        if name in data:
            found.data[name].CopyFrom(_digest(as_object(data[name])))
    return found


def _digest(part: Row) -> FileDigest:
    return FileDigest(
        sha256=_sha256(part.get("sha256")),
        size_bytes=_whole(part.get("bytes")),
        rows=_whole(part.get("rows")),
    )


def _checkpoints(value: object) -> Iterator[DescribedCheckpoint]:
    for each in as_list(value)[:MOST_CHECKPOINTS]:
        row = as_object(each)
        time, loss = row.get("time"), row.get("valid_loss")
        if not is_number(time) or not 0 <= time <= LATEST_SECONDS:
            continue
        found = DescribedCheckpoint(
            step=_whole(row.get("step")),
            created_at=contract.timestamp(datetime.fromtimestamp(time, UTC)),
            is_kept=row.get("is_kept") is True,
        )
        if is_number(loss) and math.isfinite(loss):
            found.valid_loss = loss
        yield found


def _entries(value: object) -> Iterator[tuple[str, str]]:
    for name, each in _items(value):
        yield name, _text(each)


def _items(value: object) -> Iterator[tuple[str, object]]:
    for number, (name, each) in enumerate(as_object(value).items()):
        if number == MOST_ENTRIES:
            return
        if _NAME.fullmatch(name):
            yield name, each


def _text(value: object) -> str:
    """Return a text or a number on one line; "" for anything else."""
    if isinstance(value, list | dict) or value is None:
        return ""
    text = str(value)[: 4 * LONGEST_TEXT] if isinstance(value, str | bool | float) or _is_whole(value) else ""
    printable = "".join(each if each.isprintable() else " " for each in text)
    return printable.encode("utf-8", errors="replace").decode()[:LONGEST_TEXT].strip()


def _sha256(value: object) -> str:
    return value if isinstance(value, str) and _SHA256.fullmatch(value) else ""


def _whole(value: object) -> int:
    return value if isinstance(value, int) and _is_whole(value) else 0


def _is_whole(value: object) -> bool:
    return type(value) is int and abs(value) < LARGEST
