"""CMP-13: volumes that begin as copies; real files, no Podman."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from neocloud.engines.base import EngineError
from neocloud.engines.manifest import VolumeClaim
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.storage import volumes as storage
from neocloud.engines.podman.storage.volumes import Volumes

pytestmark = pytest.mark.slow

MEBIBYTE = 2**20


def claim(name: str, source: dict[str, str] | None = None) -> VolumeClaim:
    spec: dict[str, Any] = {"resources": {"requests": {"storage": "1Gi"}}}
    if source:
        spec["dataSourceRef"] = source
    metadata = {"name": name, "namespace": "space"}
    return VolumeClaim.from_dict({"metadata": metadata, "spec": spec})


IMAGE = {"kind": "MachineImage", "name": "debian"}
COPY = {"kind": "PersistentVolumeClaim", "name": "first"}


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    folder = tmp_path / "images" / "machine" / "debian"
    folder.mkdir(parents=True)
    with (folder / "disk.qcow2").open("wb") as disk:
        disk.write(b"begin")
        disk.truncate(64 * MEBIBYTE)
    return Layout.of(tmp_path)


def test_machine_image_becomes_the_volumes_only_file_and_stays_sparse(layout: Layout) -> None:
    volumes = Volumes(layout)
    volumes.ensure_claim(claim("first", IMAGE))
    path = volumes.claim_path("space", "first")
    (disk,) = path.iterdir()
    assert disk.name == "disk.qcow2" and disk.stat().st_size == 64 * MEBIBYTE
    assert disk.stat().st_blocks * 512 < MEBIBYTE
    disk.write_bytes(b"changed")
    volumes.ensure_claim(claim("first", IMAGE))
    assert disk.read_bytes() == b"changed"


def test_copy_keeps_owners_modes_and_links(layout: Layout) -> None:
    volumes = Volumes(layout)
    volumes.ensure_claim(claim("first"))
    first = volumes.claim_path("space", "first")
    (first / "folder").mkdir(mode=0o750)
    (first / "folder" / "file").write_text("text")
    (first / "link").symlink_to("folder/file")
    os.utime(first / "folder" / "file", (1000, 1000))
    volumes.ensure_claim(claim("second", COPY))
    second = volumes.claim_path("space", "second")
    assert (second / "link").readlink() == Path("folder/file")
    assert (second / "folder").stat().st_mode == (first / "folder").stat().st_mode
    assert (second / "folder" / "file").stat().st_mtime == 1000


def test_copy_that_broke_off_is_made_again(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed half way: what is there is not taken for the volume."""
    volumes = Volumes(layout)
    half = layout.volumes / "space" / "first" / "data.new"
    half.mkdir(parents=True)
    (half / "disk.qcow2").write_text("half")
    with monkeypatch.context() as broken:
        broken.setattr(
            storage.subprocess, "run", lambda *_, **__: (_ for _ in ()).throw(OSError("disk full"))
        )
        with pytest.raises(EngineError, match="disk full"):
            volumes.ensure_claim(claim("first", IMAGE))
    assert not half.exists()
    with pytest.raises(EngineError, match="does not exist"):
        volumes.claim_path("space", "first")
    volumes.ensure_claim(claim("first", IMAGE))
    assert (volumes.claim_path("space", "first") / "disk.qcow2").stat().st_size == 64 * MEBIBYTE


@pytest.mark.parametrize("source", [{**IMAGE, "name": "absent"}, {**COPY, "name": "absent"}], ids=str)
def test_missing_source_is_named(layout: Layout, source: dict[str, str]) -> None:
    with pytest.raises(EngineError, match="absent"):
        Volumes(layout).ensure_claim(claim("first", source))


def test_a_copy_that_outgrows_its_volume_is_refused_and_leaves_nothing(layout: Layout) -> None:
    volumes = Volumes(layout)
    volumes.ensure_claim(claim("first"))
    first = volumes.claim_path("space", "first")
    with pytest.MonkeyPatch.context() as small:
        small.setattr(storage, "SPARE_BYTES", -(2**30))
        (first / "file").write_bytes(b"x" * 100 * MEBIBYTE)
        with pytest.raises(EngineError, match="free space in the original"):
            volumes.ensure_claim(claim("second", COPY))
    assert not (layout.volumes / "space" / "second" / "data").exists()
    volumes.ensure_claim(claim("second", COPY))


def test_a_volume_with_more_files_than_a_model_is_copied(layout: Layout) -> None:
    volumes = Volumes(layout)
    volumes.ensure_claim(claim("first"))
    deep = volumes.claim_path("space", "first").joinpath(*["d"] * storage.MAX_DEPTH)
    deep.mkdir(parents=True)
    with pytest.MonkeyPatch.context() as small:
        small.setattr("neocloud.core.untrusted.files.MAX_TREE_ENTRIES", 3)
        for number in range(10):
            (deep / str(number)).touch()
        volumes.ensure_claim(claim("second", COPY))
    copy = volumes.claim_path("space", "second").joinpath(*["d"] * storage.MAX_DEPTH)
    assert len(list(copy.iterdir())) == 10


def test_a_claim_with_folders_deeper_than_any_copy_is_removed(layout: Layout) -> None:
    volumes = Volumes(layout)
    volumes.ensure_claim(claim("first"))
    subprocess.run(
        ["sh", "-c", "for i in $(seq 1500); do mkdir d && cd d || exit 1; done"],
        cwd=volumes.claim_path("space", "first"),
        check=True,
    )
    volumes.remove_claim("space", "first")
    assert volumes.claims("space") == []
