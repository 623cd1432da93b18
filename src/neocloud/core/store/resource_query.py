"""A search for resources of any kind, by name, id and labels, in the places that a caller may read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

Position = tuple[str, str, str]
"""The name, kind and id of a found resource: results are in this order, by the bytes of UTF-8."""


@dataclass(frozen=True)
class SearchArea:
    """Resources of these kinds that lie in one of the places."""

    kinds: tuple[str, ...]
    parents: tuple[str, ...] = ()
    """Resources directly in one of these."""
    roots: tuple[str, ...] = ()
    """Resources in one of these, at any depth."""
    ids: tuple[str, ...] = ()
    """These resources themselves."""


@dataclass(frozen=True)
class ResourceQuery:
    """Resources in any of the areas that meet all conditions; an empty condition selects everything."""

    areas: tuple[SearchArea, ...]
    container_kinds: tuple[str, ...] = ()
    """The kinds that contain resources, to be searched below the roots of areas."""
    parent_ids: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    id_prefix: str = ""
    name: str = ""
    name_prefix: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class FoundResource:
    """A row without spec and status."""

    id: str
    kind: str
    parent_id: str
    name: str
    created_at: datetime
    labels: Mapping[str, str]
    state: str

    @property
    def position(self) -> Position:
        return self.name, self.kind, self.id


class ResourceSearch(Protocol):
    def find_resources(
        self, query: ResourceQuery, *, size: int, after: Position | None = None
    ) -> tuple[Sequence[FoundResource], Position | None]:
        """Return at most `size` resources after the position, and the position to continue from; None: there
        are no more. With labels there may be fewer than `size` although there are more."""
        ...
