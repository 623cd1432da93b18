"""Filesystems of tenants hold no more than their size; real loop devices, no Podman."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from neocloud.engines.base import EngineError, EngineUnavailable
from neocloud.engines.manifest import DataSource, EmptyDir, VolumeClaim
from neocloud.engines.podman.layout import Layout, write_record
from neocloud.engines.podman.storage import sized_filesystems
from neocloud.engines.podman.storage.mounts import mount_tmpfs, mounts_below, unmount
from neocloud.engines.podman.storage.sized_filesystems import IMAGE
from neocloud.engines.podman.storage.volumes import Volumes

MEBIBYTE = 2**20


def claim(name: str, mebibytes: int = 20, source: DataSource | None = None) -> VolumeClaim:
    return VolumeClaim(
        name=name,
        namespace="space",
        storage=f"{mebibytes}Mi",
        access_modes=("ReadWriteMany",),
        data_source=source,
    )


def write(path: Path, mebibytes: int) -> None:
    """Write zeros until they are on the disk."""
    with path.open("wb") as file:
        for _ in range(mebibytes):
            file.write(bytes(MEBIBYTE))
        file.flush()
        os.fsync(file.fileno())


def loop_devices(home: Path) -> list[str]:
    files = (path.read_text() for path in Path("/sys/block").glob("loop*/loop/backing_file"))
    return [file for file in files if file.startswith(f"{home}/")]


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[Layout]:
    layout = Layout.of(tmp_path)
    layout.volumes.mkdir()
    assert sized_filesystems.missing_support(layout.volumes) == ""
    yield layout
    for point in mounts_below(layout.run):
        unmount(point)
    shutil.rmtree(layout.run, ignore_errors=True)
    assert loop_devices(layout.home) == []


@pytest.fixture
def volumes(layout: Layout) -> Volumes:
    return enforcing(layout)


def enforcing(layout: Layout) -> Volumes:
    """Volumes of a server that has just started."""
    volumes = Volumes(layout)
    volumes.enforces_sizes = True
    return volumes


def test_it_is_full_at_its_size_and_nothing_else_is(layout: Layout, volumes: Volumes) -> None:
    volumes.ensure_claim(claim("small"))
    volumes.ensure_claim(claim("other"))
    small, other = (volumes.claim_path("space", name) for name in ("small", "other"))
    assert layout.filesystems.stat().st_mode & 0o777 == 0o700, "closed to the host's other users"
    with pytest.raises(OSError) as caught:
        write(small / "file", 21)
    assert caught.value.errno == errno.ENOSPC
    assert (small / "file").stat().st_size >= 15 * MEBIBYTE, "not more than its tables is lost"
    write(other / "file", 10)
    assert (layout.volumes / "space" / "small" / IMAGE).stat().st_blocks * 512 <= 20 * MEBIBYTE
    volumes.remove_claim("space", "small")
    assert [path.name for path in (layout.volumes / "space").iterdir()] == ["other"]
    assert not [file for file in loop_devices(layout.home) if "small" in file]


def test_what_is_deleted_is_free_on_the_disk_again(layout: Layout, volumes: Volumes) -> None:
    volumes.ensure_claim(claim("data", 100))
    data = volumes.claim_path("space", "data")
    image = layout.volumes / "space" / "data" / IMAGE
    assert volumes.stored_bytes("space", "data") < MEBIBYTE > image.stat().st_blocks * 512
    write(data / "file", 50)
    assert volumes.stored_bytes("space", "data") > 50 * MEBIBYTE < image.stat().st_blocks * 512
    (data / "file").unlink()
    os.sync()
    unmount(layout.filesystems / "space" / "data")
    assert image.stat().st_blocks * 512 < 20 * MEBIBYTE


def test_it_grows_once_it_is_unused_or_at_any_time_with_the_capability(
    layout: Layout, volumes: Volumes
) -> None:
    volumes.ensure_claim(claim("data"))
    data = volumes.claim_path("space", "data")
    (data / "kept").write_text("kept")
    point = layout.filesystems / "space" / "data"
    if not sized_filesystems.can_grow_mounted():
        image = layout.volumes / "space" / "data" / IMAGE
        with pytest.raises(EngineUnavailable, match="once no pod uses it"):
            sized_filesystems.grow(image, point, 100 * MEBIBYTE, is_used=True)
    volumes.ensure_claim(claim("data", 100))
    data = volumes.claim_path("space", "data")
    assert (data / "kept").read_text() == "kept"
    write(data / "file", 70)
    with pytest.raises(EngineError, match="cannot shrink"):
        volumes.ensure_claim(claim("data", 99))


def test_a_growth_that_was_cut_off_is_finished(layout: Layout, volumes: Volumes) -> None:
    """Killed after the file became larger, before the file system did."""
    volumes.ensure_claim(claim("data"))
    os.truncate(layout.volumes / "space" / "data" / IMAGE, 100 * MEBIBYTE)
    volumes.ensure_claim(claim("data", 100))
    write(volumes.claim_path("space", "data") / "file", 70)


def test_a_server_killed_while_it_was_made_makes_it_again(layout: Layout, volumes: Volumes) -> None:
    folder = layout.volumes / "space" / "first"
    folder.mkdir(parents=True)
    (folder / f"{IMAGE}.new").write_bytes(b"half of a file system")
    volumes.ensure_claim(claim("first"))
    write(volumes.claim_path("space", "first") / "file", 5)
    sized_filesystems.create(layout.volumes / "space" / "second" / IMAGE, 20 * MEBIBYTE)  # not recorded
    with pytest.raises(EngineError, match="does not exist"):
        volumes.claim_path("space", "second")
    volumes.ensure_claim(claim("second"))
    write(volumes.claim_path("space", "second") / "file", 5)


def test_after_a_boot_it_is_mounted_again_below_the_overlay(layout: Layout, volumes: Volumes) -> None:
    """A root file system below, changes in the volume; power was cut while it was mounted."""
    rootfs = layout.images / "jail" / "rootfs"
    rootfs.mkdir(parents=True)
    (rootfs / "release").write_text("first")
    root = claim("root", 20, DataSource("RootFilesystem", "jail"))
    volumes.ensure_claim(root)
    merged = volumes.claim_path("space", "root")
    (merged / "release").write_text("changed")
    os.sync()
    image = layout.volumes / "space" / "root" / IMAGE
    shutil.copy(image, image.with_name("as it was"))
    for point in (merged, layout.filesystems / "space" / "root"):
        unmount(point)
    image.with_name("as it was").replace(image)
    restarted = enforcing(layout)
    restarted.ensure_claim(root)
    assert (restarted.claim_path("space", "root") / "release").read_text() == "changed"
    assert (rootfs / "release").read_text() == "first"
    with pytest.raises(OSError):
        write(merged / "file", 21)
    restarted.remove_claim("space", "root")
    assert mounts_below(layout.home) == []


def test_a_damaged_one_is_named_and_not_mounted(layout: Layout, volumes: Volumes) -> None:
    volumes.ensure_claim(claim("bad"))
    volumes.ensure_claim(claim("good"))
    image = layout.volumes / "space" / "bad" / IMAGE
    with image.open("r+b") as file:
        file.write(os.urandom(8 * MEBIBYTE))
    with pytest.raises(EngineError, match=rf"{image} is damaged .*e2fsck -y"):
        volumes.claim_path("space", "bad")
    assert mounts_below(layout.run) == []
    write(volumes.claim_path("space", "good") / "file", 5)
    volumes.remove_claim("space", "bad")
    volumes.ensure_claim(claim("gone"))
    (layout.volumes / "space" / "gone" / IMAGE).unlink()
    with pytest.raises(EngineError, match="is gone"):
        volumes.claim_path("space", "gone")


def test_volumes_of_earlier_versions_and_of_other_kinds_stay_folders(
    layout: Layout, volumes: Volumes
) -> None:
    before, disk = claim("before"), VolumeClaim(name="disk", namespace="space", storage="20Mi")
    folder = layout.volumes / "space" / "before"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "kept").write_text("kept")
    spec = before.to_dict()["spec"]
    record = {"source": None, "copied": None, "size_bytes": before.size_bytes, "spec": spec}
    write_record(folder / "volume.json", record)
    for each in (before, disk):
        volumes.ensure_claim(each)
        assert volumes.claim_path("space", each.name) == layout.volumes / "space" / each.name / "data"
    assert (volumes.claim_path("space", "before") / "kept").read_text() == "kept"
    assert [found.name for found in volumes.unsized()] == ["before"]
    (warning,) = volumes.warnings()
    assert "before is not enforced" in warning


def test_a_copy_has_a_size_of_its_own(layout: Layout, volumes: Volumes) -> None:
    volumes.ensure_claim(claim("first", 40))
    write(volumes.claim_path("space", "first") / "file", 25)
    copied = DataSource("PersistentVolumeClaim", "first", "space")
    with pytest.raises(EngineError, match=r"could not be filled.*space"):
        volumes.ensure_claim(claim("second", 20, copied))
    volumes.remove_claim("space", "second")
    volumes.ensure_claim(claim("second", 40, copied))
    assert (volumes.claim_path("space", "second") / "file").stat().st_size == 25 * MEBIBYTE


def test_a_full_host_is_an_error_of_the_one_who_writes_and_passes(tmp_path: Path) -> None:
    """The files are sparse: together they may be larger than the disk."""
    home = tmp_path / "home"
    mount_tmpfs(home, size_bytes=40 * MEBIBYTE)
    layout = Layout.of(home)
    volumes = enforcing(layout)
    try:
        volumes.ensure_claim(claim("data", 100))
        (warning,) = volumes.warnings()
        assert "input/output errors" in warning
        data = volumes.claim_path("space", "data")
        (data / "kept").write_text("kept")
        os.sync()
        with pytest.raises(OSError):
            write(data / "file", 60)
        for point in mounts_below(layout.run):
            unmount(point)
        subprocess.run(["mount", "-o", "remount,size=200m", home], check=True)
        data = volumes.claim_path("space", "data")
        assert (data / "kept").read_text() == "kept"
        write(data / "file", 60)
    finally:
        for point in mounts_below(layout.run):
            unmount(point)
        unmount(home, lazily=True)  # the kernel still writes a file of it until the loop device is free
        shutil.rmtree(layout.run, ignore_errors=True)


def test_scratch_space_on_disk_holds_no_more_than_its_size(layout: Layout, volumes: Volumes) -> None:
    """SLURM-08"""
    source = EmptyDir(None, "20Mi")
    one, other = (volumes.scratch_path("space", pod, "scratch", source) for pod in ("one", "two"))
    with pytest.raises(OSError) as caught:
        write(one / "file", 21)
    assert caught.value.errno == errno.ENOSPC
    assert not list(other.iterdir()) and one.stat().st_mode & 0o777 == 0o777
    (other / "kept").write_text("kept")
    for point in mounts_below(layout.home):
        unmount(point)  # as after a boot
    again = enforcing(layout).scratch_path("space", "two", "scratch", source)
    assert again == other and (again / "kept").read_text() == "kept"
    for pod in ("one", "two"):
        volumes.remove_scratch("space", pod)
    assert not mounts_below(layout.home) and loop_devices(layout.home) == []


def test_scratch_space_without_a_size_and_of_earlier_versions_stays_a_folder(
    layout: Layout, volumes: Volumes
) -> None:
    plain = volumes.scratch_path("space", "pod", "plain", EmptyDir())
    volumes.enforces_sizes = False
    old = volumes.scratch_path("space", "pod", "old", EmptyDir(None, "20Mi"))
    (old / "kept").write_text("kept")
    volumes.enforces_sizes = True
    again = volumes.scratch_path("space", "pod", "old", EmptyDir(None, "20Mi"))
    assert (again / "kept").read_text() == "kept" and plain.is_dir()
    assert not mounts_below(layout.home)
    volumes.remove_scratch("space", "pod")
    assert not old.exists()
