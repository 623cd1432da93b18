"""The search for resources as one SQL statement, built once for each combination of conditions.

Named resources in one parent are found by the index `resources_by_name`, whose columns are parent, name and
kind. No condition is a pattern, so no character is special. Labels are stored as JSON text: the database
looks for the text of the pair, and the pair itself is compared afterwards.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    and_,
    bindparam,
    func,
    literal_column,
    or_,
    select,
    tuple_,
    union,
)

from neocloud.core.store.resource_query import FoundResource, Position, ResourceQuery, SearchArea
from neocloud.core.store.rows import Rows, Session, from_micros, load_map
from neocloud.core.store.tables import resources

_COLUMNS = (
    resources.c.id,
    resources.c.kind,
    resources.c.parent_id,
    resources.c.name,
    resources.c.created_at,
    resources.c.labels,
    resources.c.state,
)
_LAST_CHARACTER = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_CONDITIONS = ("parent_ids", "ids", "id_prefix", "name", "name_prefix")

_LABELS = ("first", "later")
_AreaForm = tuple[bool, bool, bool]
"""Whether an area has parents, roots, ids."""


class ResourceRows(Session):
    """Implements `ResourceSearch`."""

    def find_resources(
        self, query: ResourceQuery, *, size: int, after: Position | None = None
    ) -> tuple[Sequence[FoundResource], Position | None]:
        areas = [area for area in query.areas if area.kinds and (area.parents or area.roots or area.ids)]
        if not areas:
            return [], None
        values: dict[str, object] = {"count": size + 1, "container_kinds": list(query.container_kinds)}
        for at, area in enumerate(areas):
            values |= _area_values(at, area)
        given = tuple(name for name in _CONDITIONS if getattr(query, name))
        values |= {name: getattr(query, name) for name in given}
        if query.name_prefix:
            values["name_end"] = _end_of_range(query.name_prefix)
        for at, pair in enumerate(sorted(query.labels.items())):
            values |= _label_values(at, *pair)
        if after is not None:
            values |= zip(("after_name", "after_kind", "after_id"), after, strict=True)
        forms = tuple((bool(area.parents), bool(area.roots), bool(area.ids)) for area in areas)
        statement = _statement(
            self._dialect, forms, given, len(query.labels), after is not None, _has_end(query.name_prefix)
        )
        rows = self._all(statement, values)
        found = [_found(row) for row in rows[:size]]
        more = found[-1].position if len(rows) > size else None
        return [each for each in found if query.labels.items() <= each.labels.items()], more


@lru_cache(maxsize=256)
def _statement(
    dialect: str,
    areas: tuple[_AreaForm, ...],
    given: tuple[str, ...],
    labels: int,
    has_after: bool,
    has_end: bool,
) -> Any:
    """Return the statement for one combination of conditions; building it takes longer than running it."""
    shared = [*_conditions(dialect, given, labels, has_end)]
    if has_after:
        shared.append(_is_after(dialect))
    branches: list[Rows] = []
    for at, (has_parents, has_roots, has_ids) in enumerate(areas):
        # Not the column alone: SQLite would read the resources of a kind everywhere by its index.
        in_kinds = resources.c.kind.concat("").in_(_list(f"kinds_{at}"))
        places: list[ColumnElement[bool]] = []
        if has_parents:
            places.append(resources.c.parent_id.in_(_list(f"parents_{at}")))
        if has_roots:
            places.append(resources.c.parent_id.in_(_below(at)))
        if has_ids:
            places.append(resources.c.id.in_(_list(f"ids_{at}")))
        branches += [select(*_COLUMNS).where(place, in_kinds, *shared) for place in places]
    if len(branches) == 1:
        ordered = branches[0].order_by(*_order(dialect, *(resources.c[name] for name in _ORDER)))
        return ordered.limit(bindparam("count"))
    found = union(*branches).subquery("found")
    return (
        select(found)
        .order_by(*_order(dialect, *(found.c[name] for name in _ORDER)))
        .limit(bindparam("count"))
    )


_ORDER = ("name", "kind", "id")


def _below(at: int) -> Any:
    """Select the ids of the roots of an area and of what contains resources below them."""
    below = (
        select(resources.c.id)
        .where(resources.c.id.in_(_list(f"roots_{at}")))
        .cte(f"below_{at}", recursive=True)
    )
    inner = resources.alias()
    deeper = select(inner.c.id).join(below, inner.c.parent_id == below.c.id)
    return select(below.union(deeper.where(inner.c.kind.in_(_list("container_kinds")))).c.id)


def _conditions(
    dialect: str, given: tuple[str, ...], labels: int, has_end: bool
) -> Sequence[ColumnElement[bool]]:
    name, found = _bytewise(dialect, resources.c.name), list[ColumnElement[bool]]()
    if "parent_ids" in given:
        found.append(resources.c.parent_id.in_(_list("parent_ids")))
    if "ids" in given:
        found.append(resources.c.id.in_(_list("ids")))
    if "id_prefix" in given:
        # Not a range: the index of ids would then be read through the resources of others.
        prefix = _one("id_prefix")
        found.append(func.substr(resources.c.id, 1, func.length(prefix)) == prefix)
    if "name" in given:
        found.append(resources.c.name == bindparam("name"))
    if "name_prefix" in given:
        found.append(name >= bindparam("name_prefix"))
        found += [name < bindparam("name_end")] if has_end else []
    if "name" in given or "name_prefix" in given:
        # Written out: SQLite uses a partial index only if the statement contains the index's own condition.
        found.append(resources.c.name != literal_column("''"))
    place: Any = func.instr if dialect == "sqlite" else func.strpos
    for at in range(labels):
        first, later = (place(resources.c.labels, bindparam(f"{which}_label_{at}")) for which in _LABELS)
        found.append(or_(first > 0, later > 0))
    return found


def _is_after(dialect: str) -> ColumnElement[bool]:
    place = tuple_(*_order(dialect, *(resources.c[name] for name in _ORDER)))
    last = tuple_(bindparam("after_name"), bindparam("after_kind"), bindparam("after_id"))
    return and_(_bytewise(dialect, resources.c.name) >= bindparam("after_name"), place > last)


def _order(dialect: str, *columns: ColumnElement[str]) -> Sequence[ColumnElement[str]]:
    return [_bytewise(dialect, column) for column in columns]


def _bytewise(dialect: str, column: ColumnElement[str]) -> ColumnElement[str]:
    """Return the column with the order of its bytes, which SQLite uses by itself."""
    return column if dialect == "sqlite" else column.collate("C")


def _list(name: str) -> BindParameter[Sequence[str]]:
    return bindparam(name, expanding=True)


def _one(name: str) -> BindParameter[str]:
    return bindparam(name)


def _area_values(at: int, area: SearchArea) -> dict[str, object]:
    return {
        f"kinds_{at}": list(area.kinds),
        f"parents_{at}": list(area.parents),
        f"roots_{at}": list(area.roots),
        f"ids_{at}": list(area.ids),
    }


def _label_values(at: int, key: str, value: str) -> dict[str, str]:
    """Return the text of a label as the first one of a resource, and as a later one (rows.dump_map)."""
    pair = json.dumps({key: value}, ensure_ascii=False).removesuffix("}")
    return {f"first_label_{at}": pair, f"later_label_{at}": f" {pair.removeprefix('{')}"}


def _has_end(prefix: str) -> bool:
    return bool(prefix) and ord(prefix[-1]) < _LAST_CHARACTER


def _end_of_range(prefix: str) -> str:
    """Return the first text after all those that begin with the prefix; any text where there is none."""
    if not _has_end(prefix):
        return prefix
    following = ord(prefix[-1]) + 1
    return prefix[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)


def _found(row: Any) -> FoundResource:
    return FoundResource(
        id=row[0],
        kind=row[1],
        parent_id=row[2],
        name=row[3],
        created_at=from_micros(row[4]),
        labels=load_map(row[5]),
        state=row[6],
    )
