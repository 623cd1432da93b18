"""The fake engine keeps every promise of the border, so that tests on it mean something."""

from hashlib import sha256
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from neocloud.engines.base import PlatformService
from neocloud.engines.fake import FakeEngine
from neocloud.engines.fake.world import FakeWorld
from neocloud.engines.images import ImagePull, pulled_name
from neocloud.testing.engine_conformance import EngineConformance
from neocloud.testing.engine_space import image_settings


class FakeBench:
    image = "busybox"
    root_filesystem = "localhost/neocloud/busybox:1"

    platform_service = PlatformService(
        "storage", "storage.test.internal", IPv4Address("169.254.255.99"), 8080, 18080
    )

    def __init__(self, folders: Path) -> None:
        self.engine = FakeEngine(FakeWorld(platform_services=(self.platform_service,)), folders=folders)

    def reopened(self) -> FakeEngine:
        return FakeEngine(self.engine.world, folders=self.engine.folders)

    def pull(self, word: str) -> ImagePull:
        image = pulled_name("project-e00test", sha256(word.encode()).hexdigest())
        return ImagePull(image, f"registry/{word}", "puller", "secret", image_settings(word), 2**20, 60)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> FakeBench:
    return FakeBench(tmp_path_factory.mktemp("filesystems"))


class TestFakeEngine(EngineConformance):
    pass
