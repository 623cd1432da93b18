"""`neo slurm cluster backup` and `restore` on this side: the file, and ssh to a login node (ERR-20)."""

import hashlib
import io
import json
import os
import resource
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neocloud.cli.commands.slurm import backup_file
from neocloud.cli.commands.slurm.backup_file import (
    ACCOUNTING,
    FILES,
    MANIFEST,
    SUMS,
    Writer,
    new_file,
    read_backup,
)
from neocloud.client.errors import ClientError
from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import CLUSTERS, FakeServer, cluster, operation, serve_clusters

BACKUPS = "neocloud.slurm.v1.BackupService"
LOGIN = {"host": "127.0.0.1", "port": 2222, "host_keys": ["ssh-ed25519 AAAAhost"]}
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPNsYZw2ZmQ1QkZkQ1QkZkQ1QkZkQ1QkZkQ1QkZkQ1Qk me@laptop"
SPEC = {"node_sets": [{"name": "worker", "platform": "p", "preset": "q", "count": 2}]}
MANIFEST_OF = {"format": 1, "name": "bank", "slurm_version": "24.11.5", "spec": SPEC}
ZSTD = b"\x28\xb5\x2f\xfd"


def write(file: Path, manifest: object = MANIFEST_OF, files: bytes = ZSTD + b"files") -> Path:
    with new_file(file, replace=True) as writer:
        writer.add(MANIFEST, [json.dumps(manifest).encode()])
        writer.add(ACCOUNTING, [b"rows"])
        writer.add(FILES, [files[:3], files[3:]])
        writer.finish()
    return file


class TestFile:
    def test_what_was_written_is_read_again_and_tar_reads_it_too(self, tmp_path: Path) -> None:
        file = write(tmp_path / "backup")
        with file.open("rb") as opened:
            contents = read_backup(opened)
            assert contents.manifest == MANIFEST_OF
            assert b"".join(contents.accounting.chunks()) == b"rows"
            assert b"".join(contents.files.chunks(2)) == ZSTD + b"files"
        assert file.stat().st_mode & 0o777 == 0o600
        subprocess.run(["tar", "-xf", file, "-C", tmp_path], check=True)
        subprocess.run(["sha256sum", "--check", "--quiet", SUMS], check=True, cwd=tmp_path)

    @pytest.mark.parametrize("length", [0, 1, 511, 512, 513, 2000, 2560])
    def test_one_that_was_cut_off_is_refused(self, tmp_path: Path, length: int) -> None:
        file = write(tmp_path / "backup")
        os.truncate(file, length)
        with file.open("rb") as opened, pytest.raises(ClientError, match="ends too early"):
            read_backup(opened)

    def test_one_whose_content_changed_is_refused(self, tmp_path: Path) -> None:
        content = bytearray(write(tmp_path / "backup").read_bytes())
        content[content.index(ZSTD) + 5] ^= 1
        with pytest.raises(ClientError, match="sums"):
            read_backup(io.BytesIO(content))

    @pytest.mark.parametrize(
        "members",
        [
            [("../../etc/passwd", {})],
            [(MANIFEST, {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"})],
            [(MANIFEST, {"type": tarfile.GNUTYPE_LONGNAME, "size": 2**40})],
            [(ACCOUNTING, {})],
            [(MANIFEST, {}), (FILES, {})],
        ],
    )
    def test_other_members_are_refused(self, members: list[tuple[str, dict[str, Any]]]) -> None:
        packed = b""
        for name, fields in members:
            info = tarfile.TarInfo(name)
            for field, value in fields.items():
                setattr(info, field, value)
            packed += info.tobuf(tarfile.GNU_FORMAT)
        with pytest.raises(ClientError, match="is not where it should be"):
            read_backup(io.BytesIO(packed))

    def test_a_text_of_any_size_is_not_read_into_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(backup_file, "MAX_TEXT_BYTES", 100)
        file, sums = io.BytesIO(), ""
        writer = Writer(Unsynced(file))
        for name in (MANIFEST, ACCOUNTING, FILES):
            writer.add(name, [b"x" * 101])
            sums += f"{hashlib.sha256(b'x' * 101).hexdigest()}  {name}\n"
        writer.add(SUMS, [sums.encode()])
        file.seek(0)
        with pytest.raises(ClientError, match="too long"):
            read_backup(file)

    @pytest.mark.parametrize("manifest", [[], {}, {"format": "1"}, "text"])
    def test_a_manifest_without_a_format_is_refused(self, tmp_path: Path, manifest: object) -> None:
        with (
            write(tmp_path / "backup", manifest).open("rb") as opened,
            pytest.raises(ClientError, match="its format"),
        ):
            read_backup(opened)

    def test_a_newer_format_is_refused_with_the_release_to_take(self, tmp_path: Path) -> None:
        with (
            write(tmp_path / "backup", {"format": 2}).open("rb") as opened,
            pytest.raises(ClientError, match="format 2") as refused,
        ):
            read_backup(opened)
        assert "newer" in refused.value.next_step

    def test_on_a_full_disk_nothing_is_left_and_an_earlier_backup_stays(
        self, tmp_path: Path, small_files: int
    ) -> None:
        file = tmp_path / "backup"
        file.write_text("earlier")
        with pytest.raises(ClientError, match="was not written"):
            write(file, files=bytes(small_files + 1))
        assert file.read_text() == "earlier"
        assert list(tmp_path.iterdir()) == [file]

    def test_a_file_that_came_meanwhile_is_not_replaced(self, tmp_path: Path) -> None:
        file = tmp_path / "backup"
        with pytest.raises(ClientError, match="exists already"), new_file(file, replace=False) as writer:
            writer.add(MANIFEST, [b"new"])
            file.write_text("other")
        assert file.read_text() == "other"
        assert list(tmp_path.iterdir()) == [file]


class Unsynced(io.BufferedRandom):
    """A file in memory, for a writer."""

    def __init__(self, file: io.BytesIO) -> None:
        self.write, self.tell, self.seek = file.write, file.tell, file.seek  # type: ignore[method-assign]


@pytest.fixture
def small_files() -> Iterator[int]:
    """This process can write files of so many bytes, as on a disk with no more space."""
    most, before = 2**20, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    yield most
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def bank(cloud: FakeServer) -> FakeServer:
    serve_clusters(cloud, cluster("bank", login=LOGIN))
    answer = contract.method(f"{BACKUPS}/DumpAccounting").output
    cloud.serve(f"{BACKUPS}/DumpAccounting", answer(dump_id="0" * 32, size_bytes=6))
    rows = b"rows!!"

    def read(request: Any) -> Any:
        return contract.method(f"{BACKUPS}/ReadAccounting").output(data=rows[request.offset :][:4])

    cloud.serve(f"{BACKUPS}/ReadAccounting", read)
    return cloud


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of ssh, to be written by the test."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 99\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program


SAVE = "printf '\\050\\265\\057\\375and files'"


class TestBackup:
    def test_it_holds_the_accounting_in_all_its_parts_and_the_files(
        self, signed_in: Neo, bank: FakeServer, ssh: Path, tmp_path: Path
    ) -> None:
        ssh.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n{SAVE}\n')
        file = tmp_path / "out" / "bank.backup"
        file.parent.mkdir()
        ran = signed_in("slurm", "cluster", "backup", "bank", "--to", str(file))
        assert ran.code == 0, ran.err
        with file.open("rb") as opened:
            contents = read_backup(opened)
            assert contents.manifest["name"] == "bank"
            assert b"".join(contents.accounting.chunks()) == b"rows!!"
            assert b"".join(contents.files.chunks()) == ZSTD + b"and files"
        asked = (tmp_path / "asked").read_text()
        assert asked.endswith("-- 127.0.0.1 /opt/slurm/libexec/archive save\n")
        assert "User=root" in asked and "StrictHostKeyChecking=yes" in asked

    @pytest.mark.parametrize(
        ("script", "reason"),
        [
            ("echo welcome to the bank", "prints text of its own"),
            ("exit 127", "image of an earlier release"),
            ("echo 'Permission denied (publickey).' >&2; exit 255", "Permission denied"),
            (f"{SAVE}; echo tar: ./x: Input/output error >&2; exit 2", "Input/output error"),
            ("exit 0", "sent no archive"),
            (f"{SAVE}; yes long | head -c 9000000 >&2; printf '\\033[2J' >&2; exit 1", "did not do it"),
        ],
    )
    def test_what_fails_is_told_and_leaves_no_file(
        self, signed_in: Neo, bank: FakeServer, ssh: Path, tmp_path: Path, script: str, reason: str
    ) -> None:
        ssh.write_text(f"#!/bin/sh\n{script}\n")
        folder = tmp_path / "out"
        folder.mkdir()
        ran = signed_in("slurm", "cluster", "backup", "bank", "--to", str(folder / "file"))
        assert ran.code != 0
        assert reason in ran.err
        assert len(ran.err) < 6000 and "\x1b[2J" not in ran.err
        assert not list(folder.iterdir())

    def test_an_existing_file_is_refused_before_anything_is_asked(
        self, signed_in: Neo, bank: FakeServer, ssh: Path, tmp_path: Path
    ) -> None:
        file = tmp_path / "file"
        file.write_text("mine")
        ran = signed_in("slurm", "cluster", "backup", "bank", "--to", str(file))
        assert ran.code == 7 and "exists already" in ran.err
        assert not bank.asked(f"{BACKUPS}/DumpAccounting")
        ran = signed_in("slurm", "cluster", "backup", "bank", "--to", str(tmp_path), "--force")
        assert ran.code == 7 and "exists already" in ran.err

    def test_a_cluster_that_is_not_ready_is_refused(
        self, signed_in: Neo, cloud: FakeServer, tmp_path: Path
    ) -> None:
        serve_clusters(cloud, cluster("bank", state="ERROR", login=LOGIN))
        ran = signed_in("slurm", "cluster", "backup", "bank", "--to", str(tmp_path / "file"))
        assert ran.code == 1 and "is ERROR, not READY" in ran.err


@pytest.fixture
def empty(cloud: FakeServer) -> FakeServer:
    """A cloud in which a restored cluster is READY at once."""
    restored = cluster("bank", login=LOGIN)
    restored.status.slurm_version = "24.11.5"
    is_there: list[bool] = []

    def by_name(request: Any) -> Any:
        raise contract.not_found("cluster", request.name)

    def create(request: Any) -> Any:
        is_there.append(True)
        return operation(restored.metadata.id)

    serve_clusters(cloud, restored)
    cloud.serve(f"{CLUSTERS}/GetByName", by_name)
    cloud.serve(f"{CLUSTERS}/Create", create)
    for verb in ("Update", "Delete"):
        cloud.serve(f"{CLUSTERS}/{verb}", operation(restored.metadata.id))
    for verb in ("WriteAccounting", "LoadAccounting"):
        cloud.serve(f"{BACKUPS}/{verb}", contract.method(f"{BACKUPS}/{verb}").output())
    return cloud


def backup_of(file: Path, **spec: Any) -> Path:
    full = {**SPEC, "login": {"ssh_public_keys": [KEY]}, **spec}
    return write(file, {**MANIFEST_OF, "spec": full})


class TestRestore:
    def test_workers_and_users_come_after_the_files(
        self, signed_in: Neo, empty: FakeServer, ssh: Path, tmp_path: Path
    ) -> None:
        ssh.write_text(f"#!/bin/sh\ncat > {tmp_path}/files\n")
        elastic = [{**SPEC["node_sets"][0], "elastic": {"min_count": 1, "idle_seconds": 60}}]
        kept = {"users": [{"name": "ann"}], "subnet_id": "vpcsubnet-e00abc", "node_sets": elastic}
        file = backup_of(tmp_path / "file", **kept)
        ran = signed_in("slurm", "cluster", "restore", str(file), "--standalone")
        assert ran.code == 0, ran.err
        [created] = empty.asked(f"{CLUSTERS}/Create")
        assert [(part.count, part.HasField("elastic")) for part in created.spec.node_sets] == [(0, False)]
        assert not created.spec.users and not created.spec.subnet_id
        assert (tmp_path / "files").read_bytes() == ZSTD + b"files"
        [written] = empty.asked(f"{BACKUPS}/WriteAccounting")
        assert written.data == b"rows"
        [updated] = empty.asked(f"{CLUSTERS}/Update")
        (workers,) = updated.spec.node_sets
        assert (workers.count, workers.elastic.min_count, workers.elastic.idle_seconds) == (2, 1, 60)
        assert [user.name for user in updated.spec.users] == ["ann"]
        assert not empty.asked(f"{CLUSTERS}/Delete")

    def test_a_failure_deletes_the_new_cluster(
        self, signed_in: Neo, empty: FakeServer, ssh: Path, tmp_path: Path
    ) -> None:
        ssh.write_text("#!/bin/sh\necho 'tar: ./x: No space left on device' >&2\nexit 2\n")
        ran = signed_in("slurm", "cluster", "restore", str(backup_of(tmp_path / "file")))
        assert ran.code == 1
        assert "No space left on device" in ran.err and "is being deleted again" in ran.err
        assert len(empty.asked(f"{CLUSTERS}/Delete")) == 1
        assert not empty.asked(f"{BACKUPS}/LoadAccounting")

    def test_a_newer_slurm_is_refused(
        self, signed_in: Neo, empty: FakeServer, ssh: Path, tmp_path: Path
    ) -> None:
        manifest = {
            **MANIFEST_OF,
            "slurm_version": "99.1",
            "spec": {**SPEC, "login": {"ssh_public_keys": [KEY]}},
        }
        ran = signed_in("slurm", "cluster", "restore", str(write(tmp_path / "file", manifest)))
        assert ran.code == 1 and "Slurm 99.1" in ran.err
        assert len(empty.asked(f"{CLUSTERS}/Delete")) == 1

    def test_a_cluster_of_that_name_is_not_touched(
        self, signed_in: Neo, cloud: FakeServer, tmp_path: Path
    ) -> None:
        serve_clusters(cloud, cluster("bank", login=LOGIN))
        ran = signed_in("slurm", "cluster", "restore", str(backup_of(tmp_path / "file")))
        assert ran.code == 7 and "named 'bank' exists already" in ran.err and "--name" in ran.err
        assert not cloud.asked(f"{CLUSTERS}/Create")

    def test_without_any_login_key_nothing_is_created(
        self, signed_in: Neo, empty: FakeServer, tmp_path: Path
    ) -> None:
        ran = signed_in("slurm", "cluster", "restore", str(write(tmp_path / "file")))
        assert ran.code == 2 and "--ssh-key" in ran.err
        assert not empty.asked(f"{CLUSTERS}/Create")

    @pytest.mark.parametrize("spec", [None, [], {"node_sets": 7}, {"unknown": 1}])
    def test_a_spec_that_is_none_is_refused(
        self, signed_in: Neo, empty: FakeServer, tmp_path: Path, spec: object
    ) -> None:
        ran = signed_in(
            "slurm", "cluster", "restore", str(write(tmp_path / "file", {**MANIFEST_OF, "spec": spec}))
        )
        assert ran.code == 1 and "not a backup of a cluster" in ran.err

    def test_check_restores_nothing(self, signed_in: Neo, empty: FakeServer, tmp_path: Path) -> None:
        ran = signed_in("slurm", "cluster", "restore", str(backup_of(tmp_path / "file")), "--check")
        assert ran.code == 0 and "bank" in ran.out
        assert not empty.asked(f"{CLUSTERS}/Create")

    def test_a_folder_or_no_file_is_refused(self, signed_in: Neo, tmp_path: Path) -> None:
        assert "not a regular file" in signed_in("slurm", "cluster", "restore", str(tmp_path)).err
        assert "cannot be read" in signed_in("slurm", "cluster", "restore", str(tmp_path / "no")).err
