"""A real engine in a folder of its own, and a look at the machine before and after."""

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import ExitStack
from ipaddress import IPv4Address
from pathlib import Path

import pytest
import pytest_asyncio

from neocloud.engines.base import PlatformService
from neocloud.engines.images import ImagePull, ImageSettings, pulled_name
from neocloud.engines.podman import PodmanEngine
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.storage.mounts import mounts_below
from neocloud.testing.engine_space import image_settings
from tests import leftovers
from tests.fast.container_images import busybox_layer, write_layout
from tests.fast.engines.podman.registry import PASSWORD, USER, Registry
from tests.fast.engines.podman.wire import WORLD, Station, addresses_of_this_machine

BUSYBOX = Path("/bin/busybox")
PROGRAMS = (
    *("sh", "cat", "tee", "touch", "echo", "true", "false", "sleep", "kill", "httpd", "nc", "ip", "id"),
    *("ls", "mount", "head", "wc", "env", "ps", "df", "stat"),
)


class PodmanBench:
    """The parts of the conformance suite, made of one home folder."""

    image = "busybox"
    root_filesystem = "localhost/neocloud/root:1-2"

    def __init__(self, home: Path, registry: Registry) -> None:
        self.home = home
        self.registry = registry
        address = IPv4Address("169.254.255.64") + os.getpid() % 128  # of this process alone
        self.platform_service = PlatformService("storage", "storage.test.internal", address, 8080, 18080)
        self.engine = self.reopened()

    def pull(self, word: str) -> ImagePull:
        folder = self.registry.folder / word
        if not folder.exists():
            write_layout(folder, [busybox_layer({"etc/word": word})], {})
        return self.pull_of(word, image_settings(word))

    def pull_of(self, name: str, settings: ImageSettings, size_bytes: int = 64 * 2**20) -> ImagePull:
        """Return what pulls an image of the registry."""
        source = self.registry.source(name)
        image = pulled_name("project-e00test", source.partition("@")[2])
        return ImagePull(image, source, USER, PASSWORD, settings, size_bytes, timeout_seconds=60)

    def reopened(self) -> PodmanEngine:
        services = [self.platform_service]
        return PodmanEngine(self.home, opened_ranges=[WORLD], platform_services=services)


@pytest.fixture(scope="module")
def busybox_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system of one static program."""
    root = tmp_path_factory.mktemp("root")
    for folder in ("bin", "etc", "dev", "proc", "sys", "tmp", "run"):
        (root / folder).mkdir()
    shutil.copy(BUSYBOX, root / "bin" / "busybox")
    for program in PROGRAMS:
        (root / "bin" / program).symlink_to("busybox")
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n")
    return root


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory, busybox_root: Path) -> AsyncIterator[PodmanBench]:
    home = tmp_path_factory.mktemp("home")
    leftovers.record(home)
    registry = Registry(tmp_path_factory.mktemp("registry"))
    stack = ExitStack()
    stack.enter_context(registry.serving())
    bench = PodmanBench(home, registry)
    service = Station("storage", str(bench.platform_service.address))
    await service.serve(bench.platform_service.target_port, 18081, address=service.address)
    mask = os.umask(0o077)  # as the server has it
    try:
        await bench.engine.import_image(busybox_root, bench.image, env={"PATH": "/bin"})
        shutil.copytree(busybox_root, bench.home / "images/root/1-2/rootfs", symlinks=True)
        yield bench
    finally:
        stack.close()
        service.close()
        os.umask(mask)
        await bench.engine.close()  # first: a probe of it would start Podman's service again
        await PodmanEngine(bench.home).destroy()
    assert traces_of(bench.engine.layout) == set()
    assert f"{service.address}/" not in addresses_of_this_machine()
    leftovers.forget(home)
    assert [path for path in bench.home.iterdir() if path.name != "images"] == []


def traces_of(layout: Layout) -> set[str]:
    """Return all that carries the mark of this engine on this machine; others may be at work beside it."""
    rules = subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True, check=True)
    marks = (layout.interface_prefix, layout.table, layout.network(""))
    found = {line.strip() for line in rules.stdout.splitlines() if any(mark in line for mark in marks)}
    interfaces = Path("/sys/class/net")
    found |= {str(path) for path in interfaces.iterdir() if path.name.startswith(layout.interface_prefix)}
    found |= {str(path) for path in Path("/sys/fs/cgroup").glob(f"**{layout.cgroup}")}
    found |= {str(point) for point in [*mounts_below(layout.home), *mounts_below(layout.run)]}
    files = (path.read_text() for path in Path("/sys/block").glob("loop*/loop/backing_file"))
    found |= {file for file in files if file.startswith(f"{layout.home}/")}
    folders = (layout.run, layout.podman, layout.engine, layout.volumes)
    return found | {str(folder) for folder in folders if folder.exists()}
