"""The families under which the machine images are offered."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests import ROOT


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The catalogue of machine images, imported as the build does."""
    for folder in ("images", "images/machine"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    yield importlib.import_module("catalogue")
    for name in ("catalogue", "builder"):
        sys.modules.pop(name, None)


def offered(folder: Path) -> dict[str, str]:
    return {
        path.parent.name: json.loads(path.read_text())["family"]
        for path in folder.glob("machine/*/image.json")
    }


def test_no_image_without_a_driver_is_offered_under_a_family_of_cuda(
    catalogue: ModuleType, tmp_path: Path
) -> None:
    folder = tmp_path / "machine" / "debian13"
    for family, title in (
        ("ubuntu24.04-cuda13.0", "Debian 13 (trixie), under the family name ubuntu24.04-cuda13.0"),
        ("ubuntu22.04-cuda12", "Mine, with a driver"),
    ):
        former = folder.parent / family
        former.mkdir(parents=True)
        (former / "image.json").write_text(json.dumps({"family": family, "title": title}))
    folder.mkdir()
    (folder / "disk.qcow2").write_bytes(b"disk")
    image = next(each for each in catalogue.IMAGES if each.name == "debian13")
    catalogue.publish(image, folder, "1")
    found = offered(tmp_path)
    assert found.pop("ubuntu22.04-cuda12") == "ubuntu22.04-cuda12", "somebody imported that one"
    assert set(found) == {"debian13", "ubuntu24.04-driverless"}
    assert not [each for each in catalogue.IMAGES for family in each.families if "cuda" in family]
