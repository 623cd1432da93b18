"""Answers of a batch's lines while it runs: one record a line in `<home>/gateway/batches/<id>/results`.

The file is the truth of what was answered: after a crash its whole records count, and a half one at its end
is cut off. Blocks: asyncio code calls it in threads.
"""

import errno
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neocloud.gateway import json_input

BLOCK_BYTES = 1 << 20
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Record:
    """`number` is the line's in the input; a failed one goes to the error file."""

    number: int
    is_ok: bool
    output: dict[str, Any]

    def to_bytes(self) -> bytes:
        mark = "+" if self.is_ok else "-"
        return f"{self.number}\t{mark}\t{json.dumps(self.output, ensure_ascii=False)}\n".encode(
            "utf-8", "surrogatepass"
        )


class Results:
    def __init__(self, folder: Path, min_free_bytes: int = 0) -> None:
        """`min_free_bytes` of the disk are left: `append` raises OSError (ENOSPC) before it takes them."""
        self._path = folder / "results"
        self._min_free_bytes = min_free_bytes
        self._answered = bytearray()
        self.completed = self.failed = 0
        whole = 0
        if self._path.exists():
            with self._path.open("rb") as file:
                for raw in file:
                    if not raw.endswith(b"\n"):
                        break
                    whole += len(raw)
                    number, mark, _ = raw.split(b"\t", 2)
                    self._count(int(number), mark == b"+")
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._file, whole)
        self._end = whole

    def append(self, records: Iterable[Record]) -> None:
        """All of them, or, when the disk is full, none."""
        records = list(records)
        data = b"".join(record.to_bytes() for record in records)
        written = 0
        if data and shutil.disk_usage(self._path.parent).free - len(data) < self._min_free_bytes:
            raise OSError(errno.ENOSPC, "the disk has reached the space that is to stay free")
        try:
            while written < len(data):
                written += os.pwrite(self._file, data[written:], self._end + written)
        except OSError:
            os.ftruncate(self._file, self._end)
            raise
        self._end += written
        for record in records:
            self._count(record.number, record.is_ok)

    def has(self, number: int) -> bool:
        """Whether the line of this number is answered."""
        return number < len(self._answered) and self._answered[number] == 1

    @property
    def bytes(self) -> int:
        return self._end

    def close(self) -> None:
        os.fsync(self._file)
        os.close(self._file)

    def _count(self, number: int, is_ok: bool) -> None:
        if number >= len(self._answered):
            self._answered.extend(bytes(number + 1024 - len(self._answered)))
        self._answered[number] = 1
        self.completed += is_ok
        self.failed += not is_ok


def split(folder: Path) -> tuple[Path, Path]:
    """The output and the error file, made of the results."""
    output, errors = folder / "output.jsonl", folder / "errors.jsonl"
    with (folder / "results").open("rb") as results, output.open("wb") as good, errors.open("wb") as bad:
        for raw in results:
            _, mark, line = raw.split(b"\t", 2)
            (good if mark == b"+" else bad).write(line)
    return output, errors


@dataclass(frozen=True)
class Line:
    number: int
    custom_id: str
    body: dict[str, Any]


class Lines:
    """The lines of an input file that are not answered yet, read in blocks."""

    def __init__(self, path: Path, results: Results) -> None:
        self._path = path
        self._results = results
        self._offset = 0
        self._number = 0

    def read_block(self) -> list[Line]:
        """The next few; empty at the end."""
        lines: list[Line] = []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            while not lines:
                block = file.readlines(BLOCK_BYTES)
                if not block:
                    break
                lines = list(self._of(block))
            self._offset = file.tell()
        return lines

    def _of(self, block: list[bytes]) -> Iterator[Line]:
        for raw in block:
            self._number += 1
            if raw.strip() and not self._results.has(self._number):
                value = json_input.loads(raw.removeprefix(BOM) if self._number == 1 else raw)
                yield Line(self._number, value["custom_id"], value["body"])
