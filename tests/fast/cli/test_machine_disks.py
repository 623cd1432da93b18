"""`neo image import` takes disks that stand for themselves, and says why it refuses others."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from neocloud.cli.machine.disk_architecture import (
    HEAD_SECTORS,
    MOST_BYTES,
    SECTOR,
    Stretch,
    efi_partition,
)
from neocloud.cli.machine.home import Home
from neocloud.cli.machine.images import import_disk, machine_disks
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile
from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import FakeServer

pytestmark = pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs qemu-utils")
MIB = 2**20


def qemu_img(*words: object) -> None:
    subprocess.run(["qemu-img", *map(str, words)], check=True, capture_output=True)


def raw_disk(path: Path) -> Path:
    content = bytearray(MIB)
    content[510:512] = b"\x55\xaa"
    path.write_bytes(content)
    return path


def take(file: Path, home: Path, name: str = "rocky9", family: str = "rocky") -> dict[str, object]:
    return import_disk(file, home, name=name, family=family, title="Rocky Linux 9")


@pytest.mark.parametrize("form", ["raw", "qcow2"])
def test_a_disk_becomes_an_image(tmp_path: Path, form: str) -> None:
    file = raw_disk(tmp_path / "disk")
    if form == "qcow2":
        qemu_img("convert", "-f", "raw", "-O", "qcow2", file, tmp_path / "converted")
        file = tmp_path / "converted"
    facts = take(file, tmp_path)
    assert machine_disks(tmp_path) == [facts]
    assert (facts["name"], facts["family"], facts["minimum_bytes"]) == ("rocky9", "rocky", MIB)
    folder = tmp_path / "images" / "machine" / "rocky9"
    assert {path.name for path in folder.iterdir()} == {"disk.qcow2", "image.json"}
    assert json.loads((folder / "image.json").read_text())["disk"] == "disk.qcow2"


def test_what_is_not_a_disk_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a disk\n" * 1000)
    with pytest.raises(ClientError, match="neither qcow2 nor a raw disk"):
        take(tmp_path / "text", tmp_path)
    assert machine_disks(tmp_path) == []


def disk_with_boot_programs(path: Path, *names: str) -> Path:
    """A disk whose EFI system partition has these programs, made by the tools that make real ones."""
    partition = path.with_name("partition")
    partition.write_bytes(bytes(4 * MIB))
    subprocess.run(["mkfs.vfat", partition], check=True, capture_output=True)
    program = path.with_name("program")
    program.write_bytes(b"MZ")
    for folder in ("::EFI", "::EFI/BOOT"):
        subprocess.run(["mmd", "-i", partition, folder], check=True, capture_output=True)
    for name in names:
        subprocess.run(["mcopy", "-i", partition, program, f"::EFI/BOOT/{name}"], check=True)
    path.write_bytes(bytes(8 * MIB))
    layout = "label: gpt\nstart=1MiB, size=1MiB, type=linux\nstart=2MiB, size=4MiB, type=uefi\n"
    subprocess.run(["sfdisk", path], input=layout, text=True, check=True, capture_output=True)
    with path.open("r+b") as file:
        file.seek(2 * MIB)
        file.write(partition.read_bytes())
    return path


def test_a_disk_for_another_architecture_is_refused_and_leaves_the_earlier_image(tmp_path: Path) -> None:
    kept = take(raw_disk(tmp_path / "first"), tmp_path)
    foreign = disk_with_boot_programs(tmp_path / "arm", "bootaa64.efi")
    with pytest.raises(ClientError, match="it starts on arm64 and machines here are amd64"):
        take(foreign, tmp_path)
    assert machine_disks(tmp_path) == [kept]
    folder = tmp_path / "images" / "machine" / "rocky9"
    assert {path.name for path in folder.iterdir()} == {"disk.qcow2", "image.json"}
    take(disk_with_boot_programs(tmp_path / "both", "BOOTAA64.EFI", "BOOTX64.EFI"), tmp_path, "both")
    take(disk_with_boot_programs(tmp_path / "neither"), tmp_path, "neither")


def test_a_partition_table_that_lies_is_no_partition() -> None:
    head = bytearray(HEAD_SECTORS * SECTOR)
    head[SECTOR : SECTOR + 8] = b"EFI PART"
    entry = 2 * SECTOR
    head[entry : entry + 16] = bytes.fromhex("28732ac11ff8d211ba4b00a0c93ec93b")
    assert efi_partition(bytes(head)) is None  # it begins at the table itself
    head[entry + 32 : entry + 40] = (9).to_bytes(8, "little")
    assert efi_partition(bytes(head)) is None  # it ends before it begins
    head[entry + 40 : entry + 48] = b"\xff" * 8
    assert efi_partition(bytes(head)) == Stretch(512, 9, MOST_BYTES // 512)
    assert efi_partition(b"") is None


def test_a_disk_that_would_show_a_file_of_this_machine_is_refused(tmp_path: Path) -> None:
    secret = raw_disk(tmp_path / "secret")
    qemu_img("create", "-f", "qcow2", "-F", "raw", "-b", secret, tmp_path / "backed")
    outside = f"data_file={tmp_path / 'data'},data_file_raw=on"
    qemu_img("create", "-f", "qcow2", "-o", outside, tmp_path / "outside", "1M")
    for name, why in (("backed", "has a backing file"), ("outside", "data lie in another file")):
        with pytest.raises(ClientError, match=why):
            take(tmp_path / name, tmp_path)


def test_other_formats_and_broken_files_are_refused(tmp_path: Path) -> None:
    qemu_img("create", "-f", "vmdk", tmp_path / "vmdk", "1M")
    with pytest.raises(ClientError, match="format vmdk"):
        take(tmp_path / "vmdk", tmp_path)
    qemu_img("convert", "-f", "raw", "-O", "qcow2", raw_disk(tmp_path / "disk"), tmp_path / "short")
    with (tmp_path / "short").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(ClientError, match="cannot be used"):
        take(tmp_path / "short", tmp_path)


@pytest.mark.parametrize("name", ["../evil", "Rocky", "", "a/b", "-x"])
def test_names_make_paths_so_they_are_checked(tmp_path: Path, name: str) -> None:
    with pytest.raises(ClientError, match="not a name for an image"):
        take(raw_disk(tmp_path / "disk"), tmp_path, name=name)


def test_a_second_import_replaces_the_first(tmp_path: Path) -> None:
    first = take(raw_disk(tmp_path / "disk"), tmp_path)
    (tmp_path / "disk").write_bytes((tmp_path / "disk").read_bytes() + b"x" * MIB)
    second = take(tmp_path / "disk", tmp_path)
    assert machine_disks(tmp_path) == [second]
    assert (first["version"], second["minimum_bytes"]) != (second["version"], MIB)


def test_by_command(tmp_path: Path, neo: Neo) -> None:
    ran = neo("image", "import", str(raw_disk(tmp_path / "disk")), "--name", "rocky9", "--title", "Rocky")
    assert ran.code == 0, ran.err
    listed = neo("image", "list").out
    assert "machine/rocky9" in listed and "Rocky" in listed
    (tmp_path / "text").write_text("x")
    ran = neo("image", "import", str(tmp_path / "text"), "--name", "text")
    assert ran.code != 0
    assert "cannot be used" in ran.err


def test_an_import_ends_once_the_running_cloud_offers_it(
    tmp_path: Path, neo: Neo, cloud: FakeServer, credentials_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that asks for the family right after the import must find it, and the new version of it."""
    profile = Profile("home", cloud.endpoint, str(credentials_file))
    monkeypatch.setattr("neocloud.cli.commands.image.profile_of_home", lambda *_: profile)
    monkeypatch.setattr("neocloud.cli.commands.image.OFFER_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(Home, "server", lambda _: "runs")
    lists: list[int] = []

    def offered(request: Any) -> object:
        """Nothing at first, then an earlier version of the image, then the new one."""
        assert request.region, "else a cloud refuses the request"
        lists.append(len(lists))
        answer = contract.message("nebius.compute.v1.ListImagesResponse")()
        if len(lists) > 1:
            image = answer.items.add()
            image.metadata.name = "rocky9"
            (facts,) = machine_disks(tmp_path / "state")
            image.spec.version = str(facts["version"]) if len(lists) > 2 else "earlier"
        return answer

    cloud.serve("nebius.compute.v1.ImageService/ListPublic", offered)
    file = str(raw_disk(tmp_path / "disk"))
    ran = neo("image", "import", file, "--name", "rocky9")
    assert (ran.code, len(lists)) == (0, 3), ran.err
    lists.clear()
    monkeypatch.setattr("neocloud.cli.commands.image.OFFER_SECONDS", -1.0)
    ran = neo("image", "import", file, "--name", "rocky9")
    assert ran.code != 0 and "is imported, and the running cloud does not offer it" in ran.err
