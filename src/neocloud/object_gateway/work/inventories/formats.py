"""The formats of an inventory: lines to bytes, a page at a time. Pure.

Text of tenants is in keys and tags, both of which are encoded as in a URL; every value is quoted. So no
key ends a line or begins a formula of a spreadsheet.
"""

import csv
import io
import zlib
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol
from urllib.parse import quote

from neocloud.object_gateway.work.inventories.columns import Column, Value

_GZIP = 31
"""The window of zlib that writes the header of gzip."""


class Format(Protocol):
    name: str
    """The name in the manifest."""
    suffix: str
    content_type: str

    @property
    def schema(self) -> str:
        """Return the schema as the manifest has it."""
        ...

    def add(self, lines: Sequence[Sequence[Value]]) -> bytes:
        """Return what can be written already of the file with these lines."""
        ...

    def finish(self) -> bytes:
        """Return the rest of the file. A format is for one file."""
        ...


class CsvGzip:
    name = "CSV"
    suffix = "csv.gz"
    content_type = "application/gzip"

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._gzip = zlib.compressobj(wbits=_GZIP)

    @property
    def schema(self) -> str:
        return ", ".join(column.name for column in self._columns)

    def add(self, lines: Sequence[Sequence[Value]]) -> bytes:
        text = io.StringIO(newline="")
        writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
        for line in lines:
            writer.writerow([_text(*each) for each in zip(self._columns, line, strict=True)])
        return self._gzip.compress(text.getvalue().encode())

    def finish(self) -> bytes:
        return self._gzip.flush()


def _text(column: Column, value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond // 1000:03d}Z"
    return quote(str(value), safe="/") if column.is_key else str(value)
