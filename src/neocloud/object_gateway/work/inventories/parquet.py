"""Inventories in Parquet, with the names and types of S3 Inventory. Keys are as they are, not encoded."""

import io
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pyarrow  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet  # pyright: ignore[reportMissingTypeStubs]

from neocloud.object_gateway.work.inventories.columns import Column, Value

_arrow: Any = pyarrow  # has no types
_parquet: Any = pyarrow.parquet
ROW_GROUP = 10_000
"""Lines of a row group, which is written at once."""
_ARROW: dict[type, Any] = {
    str: _arrow.string(),
    int: _arrow.int64(),
    bool: _arrow.bool_(),
    datetime: _arrow.timestamp("ms", tz="UTC"),
}
_NAMES: dict[type, str] = {str: "binary", int: "int64", bool: "boolean", datetime: "int64"}
"""Physical types of Parquet."""
_MEANINGS: dict[type, str] = {str: " (UTF8)", datetime: " (TIMESTAMP_MILLIS)"}
_REQUIRED = ("Bucket", "Key")
_WORD = re.compile(r"(?<!^)(?=[A-Z])")


class _Sink(io.RawIOBase):
    """A file whose bytes are taken out as they are written; the writer only needs to know its length."""

    def __init__(self) -> None:
        self._written, self._kept = 0, bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._kept += data
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        return self._written

    def take(self) -> bytes:
        found, self._kept = bytes(self._kept), bytearray()
        return found


class ParquetSnappy:
    """A `Format`."""

    name = "Parquet"
    suffix = "parquet"
    content_type = "application/vnd.apache.parquet"

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._lines: list[Sequence[Value]] = []
        fields = [
            _arrow.field(_name(each), _ARROW[each.kind], nullable=each.name not in _REQUIRED)
            for each in columns
        ]
        self._schema = _arrow.schema(fields)
        self._sink = _Sink()
        self._writer = _parquet.ParquetWriter(
            self._sink, self._schema, compression="snappy", coerce_timestamps="ms"
        )

    @property
    def schema(self) -> str:
        fields = [
            f"{'required' if each.name in _REQUIRED else 'optional'} {_NAMES[each.kind]} {_name(each)}"
            f"{_MEANINGS.get(each.kind, '')};"
            for each in self._columns
        ]
        return f"message s3.inventory {{ {' '.join(fields)} }}"

    def add(self, lines: Sequence[Sequence[Value]]) -> bytes:
        self._lines += lines
        if len(self._lines) >= ROW_GROUP:
            self._write()
        return self._sink.take()

    def finish(self) -> bytes:
        self._write()
        self._writer.close()
        return self._sink.take()

    def _write(self) -> None:
        if not self._lines:
            return
        columns = zip(*self._lines, strict=True)
        arrays: list[Any] = [
            _arrow.array(values, field.type) for values, field in zip(columns, self._schema, strict=True)
        ]
        self._writer.write_table(_arrow.Table.from_arrays(arrays, schema=self._schema))
        self._lines = []


def _name(column: Column) -> str:
    """Return the name of a column as Parquet files of S3 Inventory have it: "e_tag", "last_modified_date"."""
    return _WORD.sub("_", column.name).lower()
