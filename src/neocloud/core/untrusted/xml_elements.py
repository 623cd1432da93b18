"""Reads XML of clients and of other endpoints, which is hostile: bounded in depth and elements, without
entities."""

from dataclasses import dataclass, field
from xml.parsers import expat

MAX_DEPTH = 10
MAX_ELEMENTS = 70_000
"""10,000 parts with their numbers, ETags and checksums are 50,000."""


class MalformedXml(ValueError):
    """A document that is not well formed, too large, or has another form than it must have; the message says
    which."""


@dataclass
class Element:
    name: str
    """Without the namespace."""
    text: str = ""
    children: list["Element"] = field(default_factory=list["Element"])
    kind: str = ""
    """The attribute xsi:type."""

    def find(self, name: str) -> "Element | None":
        """Return the only child of this name. Raises MalformedXml where there are several."""
        found = self.all(name)
        if len(found) > 1:
            raise malformed(f"{self.name} has more than one {name}.")
        return found[0] if found else None

    def all(self, name: str) -> list["Element"]:
        return [child for child in self.children if child.name == name]

    def get(self, name: str, default: str = "") -> str:
        """Return the text of a child."""
        found = self.find(name)
        return default if found is None else found.text

    def require(self, name: str) -> str:
        found = self.find(name)
        if found is None:
            raise malformed(f"{self.name} needs {name}.")
        return found.text

    def number(self, name: str) -> int | None:
        """Return the whole number of a child; None without the child."""
        found = self.find(name)
        if found is None:
            return None
        text = found.text.strip()
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise malformed(f"{name} must be a whole number.")
        return int(text)


def parse(body: bytes, root: str) -> Element:
    """Return the root element. Raises MalformedXml unless it has this name."""
    found = _Builder().build(body)
    if found is None or found.name != root:
        raise malformed(f"The body must be a {root} element.")
    return found


def malformed(message: str) -> MalformedXml:
    return MalformedXml(message)


class _Builder:
    def __init__(self) -> None:
        self._root: Element | None = None
        self._open: list[Element] = []
        self._text: list[str] = []
        self._count = 0

    def build(self, body: bytes) -> Element | None:
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text.append
        parser.StartDoctypeDeclHandler = self._refuse
        try:
            parser.Parse(body, True)
        except expat.ExpatError:
            raise malformed("The body is not well-formed XML.") from None
        return self._root

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if len(self._open) >= MAX_DEPTH or self._count > MAX_ELEMENTS:
            raise malformed("The body has too many elements.")
        kinds = [value for key, value in attributes.items() if key.rpartition(" ")[2] == "type"]
        found = Element(name.rpartition(" ")[2], kind=kinds[0] if kinds else "")
        if self._open:
            self._open[-1].children.append(found)
        else:
            self._root = found
        self._open.append(found)
        self._text.clear()

    def _end(self, name: str) -> None:
        found = self._open.pop()
        if not found.children:
            found.text = "".join(self._text)
        self._text.clear()

    def _refuse(self, *_: object) -> None:
        raise malformed("The body must not have a document type.")
