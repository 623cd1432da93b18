"""The pod that checks and converts the disk of an image, with its real rights."""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from neocloud.messages.nebius.compute.v1 import Image

from neocloud.core.reconcile.reconciler import Failed, RetryLater
from neocloud.engines.base import Reference
from neocloud.services.compute.reconcile.image_import import IMPORT_POD, ImageImports
from neocloud.services.compute.render import VolumeView, volume_objects, volume_removal
from neocloud.services.storage.public import ObjectLocation
from tests.e2e.images.machines.bench import KEY, MachineBench

pytestmark = pytest.mark.asyncio(loop_scope="module")
MIB = 2**20


class FileReads:
    """ObjectReads of one file of this machine."""

    def __init__(self, file: Path) -> None:
        self.file = file

    async def fetch(
        self, resource_id: str, place: ObjectLocation, target: BinaryIO, largest_bytes: int
    ) -> None:
        await asyncio.to_thread(target.write, self.file.read_bytes())


async def imported(bench: MachineBench, image_id: str, file: Path) -> int:
    image = Image()
    image.metadata.id = image_id
    reads: Any = FileReads(file)
    imports = ImageImports(bench.engine, lambda: reads, lambda: bench.launcher)
    await bench.engine.apply(volume_objects(VolumeView(image_id, 64 * 2**30)))
    async with asyncio.timeout(300):
        while True:
            try:
                return await imports.finish(image, await bench.engine.observe(image_id), KEY)
            except RetryLater as wait:
                await asyncio.sleep(wait.delay_seconds)


async def test_a_file_becomes_a_disk_in_a_pod_without_rights(bench: MachineBench, tmp_path: Path) -> None:
    image_id, raw = "computeimage-e00good", tmp_path / "raw"
    content = bytearray(os.urandom(20 * MIB))  # two pieces
    content[510:512] = b"\x55\xaa"
    raw.write_bytes(content)
    try:
        assert await imported(bench, image_id, raw) == len(content)
        observed = await bench.engine.observe(image_id)
        assert not observed.pods
        stored = await bench.engine.stored_bytes(Reference("PersistentVolumeClaim", image_id, image_id))
        assert len(content) <= stored < len(content) + 4 * MIB, "nothing but the disk, and the head of LUKS"
    finally:
        await bench.engine.remove(volume_removal(VolumeView(image_id, 1)))


async def test_a_file_that_reads_another_one_is_refused(bench: MachineBench, tmp_path: Path) -> None:
    image_id, file = "computeimage-e00bad", tmp_path / "backing"
    command = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-u", "-b", "/etc/shadow", file, "1M"]
    subprocess.run(command, check=True)
    try:
        with pytest.raises(Failed, match="has a backing file"):
            await imported(bench, image_id, file)
        page = await bench.engine.log_page(Reference("Pod", image_id, IMPORT_POD))
        assert "problem" in json.loads(page.lines[-1])
    finally:
        await bench.engine.remove(
            [Reference("Pod", image_id, IMPORT_POD), *volume_removal(VolumeView(image_id, 1))]
        )
