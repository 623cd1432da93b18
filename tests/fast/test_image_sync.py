"""Images that are built while the server runs are taken without a restart."""

import asyncio
import json
from pathlib import Path

import pytest

from neocloud.control_plane import image_sync
from neocloud.control_plane.image_sync import follow_images, load_images
from neocloud.engines.base import EngineError
from neocloud.testing.waiting import until

DEADLINE_SECONDS = 60.0


class Keeper:
    """Takes images, but not while it is set to refuse."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.refuses = False
        self.refusals = 0

    async def image_exists(self, name: str) -> bool:
        return name in self.loaded

    async def load_image(self, archive: Path) -> object:
        if self.refuses:
            self.refusals += 1
            raise EngineError("no room")
        self.loaded.append(archive.read_text())
        return None


def build(home: Path, folder: str, name: str) -> None:
    path = home / "images" / folder
    path.mkdir(parents=True, exist_ok=True)
    (path / "image.tar").write_text(name)
    (path / "image.json").write_text(json.dumps({"name": name, "archive": "image.tar"}))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(image_sync, "LOOK_SECONDS", 0.01)


@pytest.fixture
async def following(tmp_path):
    keeper, changes = Keeper(), []
    build(tmp_path, "slurm", "slurm:1")
    await load_images(tmp_path, keeper)

    async def changed() -> None:
        changes.append(list(keeper.loaded))

    task = asyncio.create_task(follow_images(tmp_path, keeper, changed))
    await asyncio.sleep(0)
    yield keeper, changes
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_what_is_built_later_is_loaded_and_then_told(following, tmp_path):
    keeper, changes = following
    build(tmp_path, "launcher", "launcher:1")
    await until(lambda: changes)
    assert changes[0] == ["slurm:1", "launcher:1"]


async def test_a_machine_image_needs_no_loading_and_is_told(following, tmp_path):
    keeper, changes = following
    folder = tmp_path / "images" / "machine" / "debian"
    folder.mkdir(parents=True)
    (folder / "image.json").write_text("{}")
    await until(lambda: changes)
    assert keeper.loaded == ["slurm:1"]


async def test_an_engine_that_refuses_is_asked_again(following, tmp_path):
    keeper, changes = following
    keeper.refuses = True
    build(tmp_path, "launcher", "launcher:1")
    await until(lambda: keeper.refusals > 1)
    assert not changes
    keeper.refuses = False
    await until(lambda: changes)
    assert "launcher:1" in keeper.loaded
