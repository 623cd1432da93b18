"""Rows of the store become messages of the contract."""

from datetime import UTC, datetime

import pytest
from neocloud.messages.nebius.compute.v1 import Disk, DiskSpec, Filesystem

from neocloud.core import wire
from neocloud.core.store.protocol import Resource

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROW = Resource(
    id="computedisk-e00a",
    kind="nebius.compute.v1.Disk",
    parent_id="project-e00a",
    name="data",
    created_at=NOW,
    updated_at=NOW,
    spec=DiskSpec(size_gibibytes=5).SerializeToString(),
)


def test_a_row_becomes_a_message_of_its_class() -> None:
    disk = wire.message(ROW, Disk)
    assert isinstance(disk, Disk)
    assert (disk.metadata.id, disk.spec.size_gibibytes) == (ROW.id, 5)
    assert disk == wire.resource_message(ROW)


@pytest.mark.parametrize(
    ("kind", "resource_id", "noun"),
    [
        (ROW.kind, ROW.id, "disk"),
        ("nebius.iam.v1.Container", "project-e00a", "project"),
        ("nebius.iam.v1.Container", "tenant-e00a", "tenant"),
    ],
)
def test_a_kind_has_the_noun_that_people_use(kind: str, resource_id: str, noun: str) -> None:
    assert wire.noun(kind, resource_id) == noun


def test_a_row_of_another_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="nebius.compute.v1.Disk"):
        wire.message(ROW, Filesystem)
