# pyright: standard
"""Conformance of the search for resources of any kind."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from neocloud.core.store import Resource, Store
from neocloud.core.store.resource_query import FoundResource, Position, ResourceQuery, SearchArea
from neocloud.testing.store_conformance.records import resource

TENANT, FIRST, SECOND, FOREIGN = "tenant-e00a", "project-e00a", "project-e00b", "project-e00x"
CONTAINER, GROUP, RULE, DISK, BUCKET = "Container", "SecurityGroup", "SecurityRule", "Disk", "Bucket"
ALL = (CONTAINER, GROUP, RULE, DISK, BUCKET)
HOSTILE = ("%", "_", "a%c", "a_c", "abc", "Abc", "é", "\U0010ffff", "\U0010ffffz", "a'b\"c", "[a]")


def row(identifier: str, kind: str, parent_id: str, name: str, **labels: str) -> Resource:
    return resource(identifier, kind=kind, parent_id=parent_id, name=name, labels=labels, state="READY")


ROWS = (
    row(TENANT, CONTAINER, "", "bank"),
    row(FIRST, CONTAINER, TENANT, "first"),
    row(SECOND, CONTAINER, TENANT, "second"),
    row(FOREIGN, CONTAINER, "tenant-e00other", "first"),
    row("group-e00a", GROUP, FIRST, "web"),
    row("rule-e00a", RULE, "group-e00a", "https"),
    row("disk-e00a", DISK, FIRST, "web", team="risk"),
    row("disk-e00b", DISK, SECOND, "web", team="risk", stage="test"),
    row("disk-e00c", DISK, FIRST, "", team="fraud"),
    row("disk-e00x", DISK, FOREIGN, "web", team="risk"),
    row("bucket-e00a", BUCKET, FIRST, "website"),
)


async def find(store: Store, query: ResourceQuery, size: int = 100) -> list[str]:
    """Return the ids of all results, read page by page."""
    found, after = list[FoundResource](), None
    while True:
        page, more = await _page(store, query, size, after)
        assert len(page) <= size
        found += page
        if more is None:
            break
        after = more
    assert [each.position for each in found] == sorted(each.position for each in found)
    return [each.id for each in found]


async def _page(
    store: Store, query: ResourceQuery, size: int, after: Position | None
) -> tuple[Sequence[FoundResource], Position | None]:
    return await store.read(lambda tx: tx.find_resources(query, size=size, after=after))


def inside(*roots: str, **conditions: object) -> ResourceQuery:
    area = SearchArea(kinds=ALL, roots=roots)
    return replace(ResourceQuery((area,), container_kinds=(CONTAINER, GROUP)), **conditions)


class SearchConformance:
    @pytest.fixture
    async def searched(self, store: Store) -> Store:
        await store.write(lambda tx: [tx.insert(each) for each in ROWS])
        return store

    async def test_results_are_in_order_with_all_that_is_shown(self, searched: Store) -> None:
        found, more = await _page(searched, inside(TENANT, name="web"), 2, None)
        assert [each.id for each in found] == ["disk-e00a", "disk-e00b"]
        assert more == found[1].position == ("web", DISK, "disk-e00b")
        assert (found[0].kind, found[0].parent_id, found[0].state) == (DISK, FIRST, "READY")
        assert found[0].labels == {"team": "risk"} and found[0].created_at == ROWS[0].created_at
        rest, more = await _page(searched, inside(TENANT, name="web"), 2, more)
        assert [each.id for each in rest] == ["group-e00a"] and more is None

    @pytest.mark.parametrize("size", [1, 2, 3, 100])
    async def test_pages_hold_each_result_once(self, searched: Store, size: int) -> None:
        everything = await find(searched, inside(TENANT), size)
        assert sorted(everything) == sorted({each.id for each in ROWS if "x" not in each.id} - {TENANT})

    async def test_only_the_areas_are_searched(self, searched: Store) -> None:
        assert await find(searched, inside(SECOND)) == ["disk-e00b"]
        assert await find(searched, ResourceQuery((), name="web")) == []
        assert await find(searched, inside("project-e00none", name="web")) == []
        direct = SearchArea(kinds=(DISK, RULE), parents=(FIRST,))
        assert await find(searched, ResourceQuery((direct,))) == ["disk-e00c", "disk-e00a"]
        single = SearchArea(kinds=ALL, ids=("bucket-e00a", "rule-e00a"))
        assert await find(searched, ResourceQuery((direct, single), name_prefix="w")) == [
            *("disk-e00a", "bucket-e00a")
        ]

    async def test_areas_that_overlap_give_a_result_once(self, searched: Store) -> None:
        disks = SearchArea(kinds=(DISK,), roots=(TENANT, FIRST), parents=(FIRST,), ids=("disk-e00a",))
        groups = SearchArea(kinds=(GROUP, DISK), parents=(FIRST, SECOND))
        query = ResourceQuery((disks, groups), container_kinds=(CONTAINER,), name="web")
        assert await find(searched, query, 1) == ["disk-e00a", "disk-e00b", "group-e00a"]

    async def test_only_containers_are_descended_into(self, searched: Store) -> None:
        assert await find(searched, inside(FIRST, name="https")) == ["rule-e00a"]
        assert await find(searched, inside(FIRST, name="https", container_kinds=(CONTAINER,))) == []

    async def test_conditions_are_met_together(self, searched: Store) -> None:
        assert await find(searched, inside(TENANT, id_prefix="disk-e00")) == [
            *("disk-e00c", "disk-e00a", "disk-e00b")
        ]
        assert await find(searched, inside(TENANT, ids=("disk-e00b", "disk-e00x"))) == ["disk-e00b"]
        assert await find(searched, inside(TENANT, name="web", parent_ids=(SECOND,))) == ["disk-e00b"]
        assert await find(searched, inside(TENANT, name_prefix="web", id_prefix="b")) == ["bucket-e00a"]
        assert await find(searched, inside(TENANT, labels={"team": "risk"}), 1) == ["disk-e00a", "disk-e00b"]
        both = {"team": "risk", "stage": "test"}
        assert await find(searched, inside(TENANT, labels=both), 1) == ["disk-e00b"]

    async def test_no_character_is_a_wildcard(self, store: Store) -> None:
        rows = [row(f"disk-{at}", DISK, FIRST, name) for at, name in enumerate(HOSTILE)]
        await store.write(lambda tx: [tx.insert(each) for each in rows])
        area = SearchArea(kinds=(DISK,), parents=(FIRST,))
        for name in (*HOSTILE, "%%", "a", "A", "\x7f", "'", '"', "\\", "a%", "*"):
            found = await find(store, ResourceQuery((area,), name=name))
            assert found == [each.id for each in rows if each.name == name], name
            found = await find(store, ResourceQuery((area,), name_prefix=name))
            assert sorted(found) == sorted(each.id for each in rows if each.name.startswith(name)), name
        for prefix in ("disk-1", "disk_", "%", "DISK-1", "disk-%"):
            found = await find(store, ResourceQuery((area,), id_prefix=prefix))
            assert sorted(found) == sorted(each.id for each in rows if each.id.startswith(prefix)), prefix

    async def test_labels_are_compared_as_pairs(self, store: Store) -> None:
        labels = (
            {"a": "b", "c": "d"},
            {"a": 'b", "c": "d'},
            {'a": "b", "c': "d"},
            {"key ": ": ", "x": "y"},
            {"a": "%", "_": "\0"},
            {"b": "a", "d": "c"},
            {"a": "B"},
        )
        rows = [replace(row(f"disk-{at}", DISK, FIRST, ""), labels=each) for at, each in enumerate(labels)]
        await store.write(lambda tx: [tx.insert(each) for each in rows])
        area = SearchArea(kinds=(DISK,), parents=(FIRST,))
        for wanted in (*labels, {"c": "d"}, {"a": "b"}, {": ": ", "}, {"_": "\0"}, {"a": "_"}, {"": ""}):
            found = await find(store, ResourceQuery((area,), labels=wanted), 2)
            assert found == [each.id for each in rows if wanted.items() <= each.labels.items()], wanted
