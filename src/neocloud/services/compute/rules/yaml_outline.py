"""Outline a tenant's YAML without building it: the kind of its root, and whether it is within bounds.

Only events of libyaml are read, one after another, so time and memory grow with the text alone. Aliases and
merge keys are counted as what they would become, as a reader that builds the document has to pay for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

import yaml

from neocloud.core.store.group_commit import refuse_while_writing

MAX_NODES = 10_000
"""With every alias counted as all that it stands for."""
MAX_DEPTH = 50
_KINDS = "binary bool float int map merge null omap pairs seq set str timestamp"  # what safe readers know
_TAGS = frozenset({"!", *(f"tag:yaml.org,2002:{kind}" for kind in _KINDS.split())})


class Root(StrEnum):
    NOTHING = "nothing"
    SCALAR = "scalar"
    SEQUENCE = "sequence"
    MAPPING = "mapping"


class OutlineError(ValueError):
    """Why the text is not taken, and where. Never holds any of the text: it may be secret."""


class SyntaxFault(OutlineError):
    """It is not YAML at all."""


@dataclass
class _Open:
    """A collection that has begun."""

    anchor: str | None
    nodes: int = 1


@dataclass
class _Outline:
    root: Root = Root.NOTHING
    documents: int = 0
    nodes: int = 0
    open: list[_Open] = field(default_factory=list[_Open])
    anchors: dict[str, int] = field(default_factory=dict[str, int])

    def read(self, event: Any) -> None:
        match event:
            case yaml.DocumentStartEvent():
                self.documents += 1
                self.anchors.clear()
                if self.documents > 1:
                    raise OutlineError(f"holds more than one document{_place(event)}")
            case yaml.ScalarEvent():
                self._check_tag(event)
                self._add(Root.SCALAR, 1, event)
                self._name(event.anchor, 1)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._check_tag(event)
                is_mapping = isinstance(event, yaml.MappingStartEvent)
                self._begin(Root.MAPPING if is_mapping else Root.SEQUENCE, event)
            case yaml.CollectionEndEvent():
                ended = self.open.pop()
                self._name(ended.anchor, ended.nodes)
            case yaml.AliasEvent():
                if event.anchor not in self.anchors:
                    raise OutlineError(f"has an alias of what was not there before{_place(event)}")
                self._add(Root.SCALAR, self.anchors[event.anchor], event)
            case _:
                pass  # ends of documents and of the stream

    def _begin(self, root: Root, event: Any) -> None:
        self._add(root, 1, event)
        if len(self.open) >= MAX_DEPTH:
            raise OutlineError(f"is nested more than {MAX_DEPTH} deep{_place(event)}")
        self.open.append(_Open(event.anchor))

    def _add(self, root: Root, nodes: int, event: Any) -> None:
        if not self.open:
            self.root = root
        for each in self.open:
            each.nodes += nodes
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            raise OutlineError(f"stands for more than {MAX_NODES} values{_place(event)}")

    def _name(self, anchor: str | None, nodes: int) -> None:
        if anchor is not None:
            self.anchors[anchor] = nodes

    def _check_tag(self, event: Any) -> None:
        if event.tag and event.tag not in _TAGS:
            raise OutlineError(f"has a tag that is not of YAML itself{_place(event)}")


def yaml_root(text: str) -> Root:
    """Return what the one document in the text is. Raises OutlineError. Not for the write transaction."""
    refuse_while_writing("Parsing YAML")
    outline = _Outline()
    try:
        events = cast(Iterator[yaml.Event], yaml.parse(text, Loader=yaml.CSafeLoader))  # pyright: ignore[reportUnknownMemberType]
        for event in events:
            outline.read(event)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise SyntaxFault(f"{problem}{_place(error)}") from None
    except UnicodeEncodeError:
        raise SyntaxFault("it has invalid characters") from None
    return outline.root


def _place(found: Any) -> str:
    mark = getattr(found, "start_mark", None) or getattr(found, "problem_mark", None)
    return f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
