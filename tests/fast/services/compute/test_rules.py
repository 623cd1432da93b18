from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from neocloud.messages.nebius.compute.v1 import Filesystem, FilesystemSpec

from neocloud.core.contract import ApiError, Code
from neocloud.services.compute.public import filesystem_spec
from neocloud.services.compute.rules import FilesystemRules
from neocloud.services.compute.types import FilesystemType

WORLD = SimpleNamespace(
    now=datetime(2026, 1, 1, tzinfo=UTC), inventory=None, subject=None, reservations=lambda namespace: {}
)
RULES = FilesystemRules()


def filesystem(spec, **labels: str):
    found = Filesystem(spec=spec)
    found.metadata.id, found.metadata.name = "computefilesystem-e00abc", "data"
    found.metadata.labels.update(labels)
    return found


def fields(new, old=None) -> list[str]:
    return [violation.field for violation in RULES.violations(new, old, WORLD)]  # pyright: ignore


def test_a_usual_filesystem_is_legal() -> None:
    assert fields(filesystem(filesystem_spec(64), team="risk")) == []


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"size_gibibytes": 0}, "spec.size_gibibytes"),
        ({"size_gibibytes": -5}, "spec.size_gibibytes"),
        ({"size_bytes": 2**63 - 1}, "spec.size_bytes"),
        ({}, "spec.size_gibibytes"),
    ],
)
def test_absurd_sizes_are_refused(spec: dict[str, Any], field: str) -> None:
    assert fields(filesystem(FilesystemSpec(type=FilesystemType.Value("NETWORK_SSD"), **spec))) == [field]


def test_a_type_that_is_not_offered_is_refused() -> None:
    spec = FilesystemSpec(size_gibibytes=1, type=FilesystemType.Value("WEKA"))
    assert fields(filesystem(spec)) == ["spec.type"]


def test_a_filesystem_grows_but_never_shrinks() -> None:
    assert fields(filesystem(filesystem_spec(65)), filesystem(filesystem_spec(64))) == []
    assert fields(filesystem(filesystem_spec(63)), filesystem(filesystem_spec(64))) == ["spec.size_gibibytes"]


def test_labels_of_the_cloud_cannot_be_set_or_changed_by_hand() -> None:
    label = {"neocloud.dev/namespace": "slurmcluster-e00other"}
    field = 'metadata.labels["neocloud.dev/namespace"]'
    assert fields(filesystem(filesystem_spec(1), **label)) == [field]
    owned = filesystem(filesystem_spec(1), **{"neocloud.dev/namespace": "slurmcluster-e00mine"})
    assert fields(owned, owned) == []
    assert fields(filesystem(filesystem_spec(1), **label), owned) == [field]
    assert fields(filesystem(filesystem_spec(1)), owned) == [field]


def test_a_protected_filesystem_is_not_deleted() -> None:
    spec = filesystem_spec(1)
    RULES.check_delete(filesystem(spec), WORLD)  # pyright: ignore
    spec.forbid_deletion = True
    with pytest.raises(ApiError, match="protected against deletion") as caught:
        RULES.check_delete(filesystem(spec), WORLD)  # pyright: ignore
    assert caught.value.code == Code.FAILED_PRECONDITION
