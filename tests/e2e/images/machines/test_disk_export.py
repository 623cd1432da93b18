"""The pod that reads a disk for its export, with its real rights."""

import asyncio
import os
import shutil
import subprocess
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from neocloud.core.reconcile.reconciler import RetryLater
from neocloud.engines.base import PodPhase
from neocloud.services.compute.reconcile.disk_export_pod import (
    EXPORT_POD,
    ExportStream,
    export_objects,
    export_references,
    read_file_size,
    read_problem,
)
from neocloud.services.compute.render import VolumeView, claim_of, volume_objects, volume_removal
from tests.e2e.images.machines.bench import KEY, MachineBench
from tests.fast.services.compute.encrypted_disks import encrypt_disk

pytestmark = pytest.mark.asyncio(loop_scope="module")
EXPORT = "computediskexport-e00real"
MIB = 2**20


async def exported(bench: MachineBench, disk: Path | None, key: str) -> bytes:
    """Return the file that the pod reads from a disk; raises AssertionError with what it refuses."""
    claim = claim_of(EXPORT)
    await bench.engine.apply(volume_objects(VolumeView(EXPORT, 2**30)))
    if disk is not None:
        folder = bench.engine.layout.volumes / claim.namespace / claim.name / "data"
        shutil.copyfile(disk, folder / "disk.qcow2")
    await bench.engine.apply(export_objects(EXPORT, bench.launcher, key))
    try:
        async with asyncio.timeout(180):
            return await _read(bench)
    finally:
        await bench.engine.remove([*export_references(EXPORT), *volume_removal(VolumeView(EXPORT, 1))])


def whole(stream: ExportStream) -> bytes:
    return b"".join(iter(partial(stream.read, MIB), b""))


async def _read(bench: MachineBench) -> bytes:
    while True:
        pod = (await bench.engine.observe(EXPORT)).pod(EXPORT_POD)
        if pod is not None and pod.phase is PodPhase.RUNNING:
            with suppress(RetryLater):
                size = await read_file_size(bench.engine, EXPORT)
                stream = ExportStream(bench.engine, EXPORT, size)
                return await asyncio.to_thread(whole, stream)
        elif pod is not None and pod.phase is not PodPhase.PENDING:
            raise AssertionError(await read_problem(bench.engine, EXPORT))
        await asyncio.sleep(0.2)


async def test_an_encrypted_disk_is_read_as_a_plain_one_in_a_pod_without_rights(
    bench: MachineBench, tmp_path: Path
) -> None:
    raw, disk, out = tmp_path / "raw", tmp_path / "disk", tmp_path / "out"
    (tmp_path / "key").write_text(KEY)
    raw.write_bytes(os.urandom(20 * MIB) + bytes(30 * MIB) + os.urandom(5 * MIB))
    encrypt_disk(raw, disk, tmp_path / "key")
    out.write_bytes(await exported(bench, disk, KEY))
    compared = ["qemu-img", "compare", "-f", "raw", "-F", "qcow2", raw, out]
    subprocess.run(compared, check=True, stdout=subprocess.DEVNULL)
    assert 25 * MIB < out.stat().st_size < 30 * MIB
    assert not (await bench.engine.observe(EXPORT)).pods


async def test_what_is_no_disk_of_this_cloud_is_refused(bench: MachineBench, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    command = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-u", "-b", "/etc/shadow", disk, "1M"]
    subprocess.run(command, check=True)
    with pytest.raises(AssertionError, match="not a file of this cloud"):
        await exported(bench, disk, "")
    with pytest.raises(AssertionError, match="no machine has ever used it"):
        await exported(bench, None, "")
