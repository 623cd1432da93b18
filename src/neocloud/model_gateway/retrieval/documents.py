"""The text of documents: plain text, Markdown, HTML, JSON, CSV and PDF.

Documents are hostile. This runs in a reading process (`reading`), whose memory and time are bounded.
"""

import csv
import io
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from neocloud.core.contract.json_codec import Json

if TYPE_CHECKING:
    from pypdf import PdfReader

MAX_TEXT_BYTES = 16 << 20
"""Bytes of text of one document; OpenAI's limit of 5 million tokens is about as much."""
MAX_PAGES = 5000
MAX_JSON_LEVELS = 64
TEXT_SUFFIXES = frozenset(
    (
        *(".txt", ".md", ".markdown", ".rst", ".tex", ".log", ".xml", ".yaml", ".yml", ".toml", ".ini"),
        *(".c", ".cpp", ".cs", ".css", ".go", ".java", ".js", ".php", ".py", ".rb", ".sh", ".sql", ".ts"),
    )
)
OFFICE_SUFFIXES = frozenset((".doc", ".docx", ".ppt", ".pptx", ".xls", ".xlsx", ".odt", ".ods", ".rtf"))


class UnreadableDocument(Exception):
    """The document has no text that can be read. `code` is one of OpenAI's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def unsupported(message: str) -> UnreadableDocument:
    return UnreadableDocument("unsupported_file", message)


def invalid(message: str) -> UnreadableDocument:
    return UnreadableDocument("invalid_file", message)


def document_text(content: BinaryIO, name: str) -> str:
    """Return the text of a document. Raises UnreadableDocument."""
    suffix = PurePosixPath(name).suffix.lower()
    if content.read(1024).lstrip().startswith(b"%PDF-") or suffix == ".pdf":
        text = _pdf_text(content)
    elif suffix in OFFICE_SUFFIXES:
        raise unsupported(f"Files of type {suffix} are not read. Export the document as PDF or text.")
    else:
        content.seek(0)
        data = content.read(MAX_TEXT_BYTES + 1)
        if len(data) > MAX_TEXT_BYTES:
            raise invalid(f"The file has more than {MAX_TEXT_BYTES} bytes of text. Split it.")
        text = _of_suffix(_decoded(data, suffix), suffix)
    if len(text) > MAX_TEXT_BYTES:
        raise invalid(f"The text of the file has more than {MAX_TEXT_BYTES} characters. Split it.")
    if not text.strip():
        raise invalid("The file has no text. A scanned document needs text recognition first.")
    return text


def _decoded(data: bytes, suffix: str) -> str:
    is_utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    if not is_utf16 and b"\x00" in data:
        raise unsupported(
            f"A binary file ({suffix or 'no suffix'}) is not read. Upload text, HTML, JSON, CSV or PDF."
        )
    try:
        return data.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"The file is not UTF-8 text (byte {error.start + 1}). Save it as UTF-8."
        raise invalid(message) from None


def _of_suffix(text: str, suffix: str) -> str:
    if suffix in (".html", ".htm", ".xhtml"):
        return _html_text(text)
    if suffix == ".json":
        return "\n\n".join(_json_texts(_json(text, "The file")))
    if suffix in (".jsonl", ".ndjson"):
        lines = [line for line in text.splitlines() if line.strip()]
        values = (_json(line, f"Line {number}") for number, line in enumerate(lines, 1))
        return "\n\n".join("\n".join(_json_lines(value, "", 1)) for value in values)
    if suffix in (".csv", ".tsv"):
        return _table_text(text, suffix)
    return text


_BLOCKS = frozenset(
    (
        *("p", "div", "br", "li", "ul", "ol", "tr", "table", "section", "article", "header", "footer"),
        *("h1", "h2", "h3", "h4", "h5", "h6", "pre", "blockquote", "dt", "dd", "title", "option"),
    )
)
_HIDDEN = frozenset(("script", "style", "noscript", "template", "svg"))


class _Page(HTMLParser):
    """Collects what a reader of the page sees."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in _HIDDEN
        if tag in _BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = max(self._hidden - (tag in _HIDDEN), 0)
        if tag in _BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data)


def _html_text(text: str) -> str:
    page = _Page()
    page.feed(text)
    page.close()
    lines = (line.strip() for line in "".join(page.parts).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def _json(text: str, what: str) -> Json:
    try:
        return json.loads(text)
    except RecursionError:
        raise invalid(f"{what} is nested too deeply.") from None
    except ValueError as error:
        raise invalid(f"{what} is not valid JSON: {str(error)[:200]}.") from None


def _json_texts(value: Json) -> Iterator[str]:
    """Yield one paragraph for each entry of a list; one for anything else."""
    for each in value if isinstance(value, list) else [value]:
        yield "\n".join(_json_lines(each, "", 1))


def _json_lines(value: Json, path: str, level: int) -> Iterator[str]:
    if level > MAX_JSON_LEVELS:
        raise invalid(f"The JSON is nested more than {MAX_JSON_LEVELS} levels deep.")
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _json_lines(each, f"{path}.{key}" if path else str(key), level + 1)
    elif isinstance(value, list):
        for each in value:
            yield from _json_lines(each, path, level + 1)
    elif value is not None:
        yield f"{path}: {value}" if path else str(value)


def _table_text(text: str, suffix: str) -> str:
    """Return a paragraph for each row, with the name of the column before each value."""
    head = text.partition("\n")[0]
    delimiter = "\t" if suffix == ".tsv" else max(",;\t", key=head.count)
    csv.field_size_limit(MAX_TEXT_BYTES)
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except csv.Error as error:
        raise invalid(f"The file is not a valid table: {error}.") from None
    names = rows[0] if rows else []
    paragraphs: list[str] = []
    size = 0
    for row in rows[1:]:
        cells = [
            f"{names[at] if at < len(names) else at + 1}: {cell}"
            for at, cell in enumerate(row)
            if cell.strip()
        ]
        paragraphs.append("\n".join(cells))
        size += len(paragraphs[-1])
        if size > MAX_TEXT_BYTES:
            raise invalid(f"The text of the table has more than {MAX_TEXT_BYTES} characters. Split it.")
    return "\n\n".join(paragraphs) or "\n".join(names)


_PARSER_ERRORS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, ImportError, OSError)
"""Errors by which pypdf says that a file breaks its rules. The process may not import or open more files."""


def _pdf_text(content: BinaryIO) -> str:
    from pypdf import PdfReader  # noqa: PLC0415  slow to load, and few documents need it
    from pypdf.errors import PyPdfError  # noqa: PLC0415

    try:
        content.seek(0)
        reader = PdfReader(content)
        if reader.is_encrypted:
            raise invalid("The PDF is encrypted. Upload a copy without a password.")
        return _pages(reader)
    except (PyPdfError, *_PARSER_ERRORS) as error:
        raise invalid(f"The PDF cannot be read: {type(error).__name__}: {str(error)[:200]}.") from None


def _pages(reader: "PdfReader") -> str:
    texts: list[str] = []
    size = 0
    for number, page in enumerate(reader.pages):
        if number >= MAX_PAGES:
            raise invalid(f"The PDF has more than {MAX_PAGES} pages. Split it.")
        texts.append(page.extract_text())
        size += len(texts[-1])
        if size > MAX_TEXT_BYTES:
            raise invalid(f"The PDF has more than {MAX_TEXT_BYTES} characters of text. Split it.")
    return "\n\n".join(texts)
