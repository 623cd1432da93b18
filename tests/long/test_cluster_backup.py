"""A cluster is backed up while a job writes, deleted, and restored: files, packages, users, past jobs.

The archive and the dump are a user's files: what a made-up one does is tried at the end.
"""

import io
import signal
import subprocess
import tarfile
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from neocloud.cli.commands.slurm.backup_file import (
    ACCOUNTING,
    FILES,
    MANIFEST,
    new_file,
    read_backup,
)
from neocloud.client.errors import ClientError
from neocloud.testing.waiting import wait_until
from tests.e2e.cloud import Cloud, run
from tests.e2e.cluster import SHARED, Cluster, user_key

MAKE_FILES = """
set -e
mkdir -p /srv/project "/srv/project/a name"$'\\n'"in two lines" /srv/project/empty
cd /srv/project
echo first > one; ln one second; ln -s /etc/shadow link; mkfifo pipe
echo suid > runs; chown ann:ann runs; chmod 4750 runs
python3 -c 'import os; os.setxattr("one", "user.note", b"kept")'
truncate -s 3G sparse; printf end >> sparse
touch -d 2001-02-03T04:05:06.789 one; touch -d 2002-02-02 .
rm /etc/motd
mkdir -p /tmp/p/DEBIAN /tmp/p/usr/bin
printf '#!/bin/sh\\necho 42\\n' > /tmp/p/usr/bin/answer; chmod 755 /tmp/p/usr/bin/answer
printf 'Package: answer\\nVersion: 1\\nArchitecture: all\\n' > /tmp/p/DEBIAN/control
printf 'Maintainer: T <t@example.com>\\nDescription: t\\n' >> /tmp/p/DEBIAN/control
dpkg-deb --build /tmp/p /tmp/answer.deb > /dev/null && dpkg -i /tmp/answer.deb > /dev/null
"""
DESCRIBE = r"""
cd /srv && find . -printf '%P|%y|%m|%u|%g|%n|%s|%l|%T@\0' | sort -z | tr '\0' '\n'
id ann; stat --format='%n %U %G %a %y' /home/ann
python3 -c 'import os; print(os.getxattr("/srv/project/one", "user.note"))'
ls /etc/motd 2>&1; dpkg --status answer; answer
"""


@pytest.fixture(scope="module")
def vault(cloud: Cloud) -> Iterator[Cluster]:
    """A cluster of its own: its tests delete and restore it."""
    name = "vault"
    vault = Cluster.create(cloud, name, "--workers", "1", "--preset", "1vcpu-4gb", "--shared-root-size", "12")
    cloud.neo("slurm", "user", "add", name, "ann", "--ssh-key", f"{user_key(cloud)}.pub")
    yield vault
    if cloud.neo("slurm", "cluster", "get", name, code=None).returncode == 0:
        cloud.neo("slurm", "cluster", "delete", name, "--yes")


def archive(vault: Cluster, verb: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = ["ssh", "-F", str(vault.ssh_config), vault.name, f"/opt/slurm/libexec/archive {verb}"]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=300, check=False)


def test_a_cluster_comes_back_from_its_backup(cloud: Cloud, vault: Cluster, tmp_path: Path) -> None:
    """ERR-20: backup of the shared root and accounting; the jobs of the past are still known."""
    file, identity = tmp_path / "vault.backup", ("--identity", str(user_key(cloud)))
    vault.ssh("bash -s", stdin=MAKE_FILES)
    ended = vault.sbatch("echo done")
    assert vault.wait_for_job(ended) == "COMPLETED"
    wait_until(lambda: "COMPLETED" in vault.ssh(f"sacct -nXP -j {ended} -o State"), "accounting has the job")
    writing = vault.sbatch(f"while :; do date >> {SHARED}/log; date > {SHARED}/new.$RANDOM; done")
    wait_until(lambda: vault.try_ssh(f"test -s {SHARED}/log").returncode == 0, "the job writes")
    before = vault.ssh(DESCRIBE)

    made = cloud.neo_json("slurm", "cluster", "backup", vault.name, "--to", str(file), *identity)
    assert made["shared_root_bytes"] > 100 * 2**20
    assert vault.job_state(writing) == "RUNNING"
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]
    again = cloud.neo("slurm", "cluster", "backup", vault.name, "--to", str(file), *identity, code=None)
    assert again.returncode == 7 and "exists already" in again.stderr
    over = cloud.neo("slurm", "cluster", "restore", str(file), code=None)
    assert over.returncode == 7 and "named 'vault' exists already" in over.stderr

    interrupted_backup_leaves_nothing(cloud, vault, tmp_path / "other")
    cloud.neo("slurm", "cluster", "delete", vault.name, "--yes")
    cloud.neo("slurm", "cluster", "restore", str(file), *identity, seconds=900)
    vault.__dict__.pop("id", None)  # another cluster of that name
    vault.write_ssh_config()
    vault.wait_until_idle(1)

    assert vault.ssh(DESCRIBE) == before
    history = vault.ssh(f"sacct -nXP -j {ended},{writing} -o JobID,State,User").splitlines()
    assert history[0] == f"{ended}|COMPLETED|root"
    assert history[1].startswith(f"{writing}|CANCELLED")
    assert vault.ssh(f"cat {SHARED}/slurm-{ended}.out") == "done"
    assert vault.sbatch("answer") > writing
    as_ann = ("slurm", "cluster", "ssh", vault.name, "--user", "ann", *identity)
    assert cloud.neo(*as_ann, "--", "srun id --user --name").stdout.strip() == "ann"


def interrupted_backup_leaves_nothing(cloud: Cloud, vault: Cluster, folder: Path) -> None:
    folder.mkdir()
    key = str(user_key(cloud))
    words = ("slurm", "cluster", "backup", vault.name, "--to", str(folder / "file"), "--identity", key)
    running = cloud.start_neo(*words)
    wait_until(lambda: any(each.stat().st_size > 2**20 for each in folder.iterdir()), "files are copied")
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130
    assert not list(folder.iterdir())


# Archives and dumps that nobody's backup wrote


def hostile_tar(*members: tuple[str, dict[str, object], bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as packed:
        for name, fields, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for field, value in fields.items():
                setattr(info, field, value)
            packed.addfile(info, io.BytesIO(content))
    return stored(buffer.getvalue())


def stored(content: bytes) -> bytes:
    """A zstd frame of one block without compression."""
    assert len(content) < 128 * 1024
    block = (len(content) << 3 | 1).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd\xa0" + len(content).to_bytes(4, "little") + block + content


def test_no_archive_writes_outside_of_the_shared_root(vault: Cluster) -> None:
    """Names that lead out, links, devices: they end in the cluster's own root, or are refused."""
    vault.wait_until_idle(1)
    link = {"type": tarfile.SYMTYPE, "linkname": "/"}
    attacks = {
        "parents": [("./../../../escape-1", {}, b"1")],
        "absolute": [("/run/escape-2", {}, b"2")],
        "through a link": [("./way", link, b""), ("./way/escape-3", {}, b"3")],
        "hard link": [
            ("./escape-4", {"type": tarfile.LNKTYPE, "linkname": "/etc/neocloud/secrets/slurm-key"}, b"")
        ],
        "over Slurm's programs": [("./opt/slurm/bin/escape-5", {}, b"5")],
    }
    for what, members in attacks.items():
        archive(vault, "replace", hostile_tar(*members))
        outside = vault.in_pod(
            "login-0", "find", "/", "-xdev", "-name", "escape-*", "-not", "-path", "/proc/*"
        )
        assert not [each for each in outside.split() if not each.startswith("/jail/")], what
    assert vault.try_ssh("cat /escape-4").returncode != 0
    assert vault.try_ssh("ls /opt/slurm/bin/escape-5").returncode != 0
    disk = ("./disk", {"type": tarfile.BLKTYPE, "devmajor": 254, "devminor": 0}, b"")
    refused = archive(vault, "replace", hostile_tar(disk))
    assert refused.returncode == 2 and b"Operation not permitted" in refused.stderr
    assert vault.try_ssh("test -e /disk").returncode != 0
    assert archive(vault, "replace", b"no archive").returncode != 0
    assert vault.ssh("echo still there") == "still there"


@pytest.mark.parametrize(
    ("dump", "reason"),
    [
        (b"neocloud-accounting 2 1\n", "not a dump of this version"),
        (b"neocloud-accounting 1 1\nmysql.user 1 a\n1", "a table that accounting has not"),
        (b"neocloud-accounting 1 1\n../x 1 a\n1", "a table that accounting has not"),
        (b"neocloud-accounting 1 1\nacct_table 1 name`)SET(`name\n1", "is damaged"),
        (b"neocloud-accounting 1 1\nacct_table 999999 name\n1", "it ends in table"),
        (b"neocloud-accounting 1 1\nacct_table 2 name\na\nacct_table 2 name\na\n", "twice"),
        (b"neocloud-accounting 1 1\nacct_table 2 nothing\na\n", "Unknown column"),
        (b"\\! touch /escape-6\n", "not a dump of this version"),
    ],
)
def test_no_dump_makes_the_database_do_more_than_hold_rows(
    cloud: Cloud, fresh: Cluster, dump: bytes, reason: str
) -> None:
    """Nothing of a dump is executed, and one that is refused changes nothing."""
    accounts = fresh.ssh("sacctmgr -nP show account")
    backups = "neocloud.slurm.v1.BackupService"
    cloud.call(
        f"{backups}/WriteAccounting", {"cluster_id": fresh.id, "data": b64encode(stored(dump)).decode()}
    )
    with pytest.raises(ClientError) as refused:
        cloud.call(f"{backups}/LoadAccounting", {"cluster_id": fresh.id})
    assert reason in str(refused.value)
    assert fresh.ssh("sacctmgr -nP show account") == accounts


@pytest.fixture(scope="module")
def fresh(cloud: Cloud) -> Iterator[Cluster]:
    """A cluster that has run no job."""
    fresh = Cluster.create(cloud, "fresh", "--workers", "0")
    yield fresh
    cloud.neo("slurm", "cluster", "delete", "fresh", "--yes")


def test_a_restore_that_fails_leaves_no_cluster(cloud: Cloud, fresh: Cluster, tmp_path: Path) -> None:
    """A disk that is full, or an archive with a device: the new cluster is deleted again."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    identity = ("--identity", str(user_key(cloud)))
    cloud.neo("slurm", "cluster", "backup", fresh.name, "--to", str(good), *identity)
    disk = ("./disk", {"type": tarfile.BLKTYPE, "devmajor": 254, "devminor": 0}, b"")
    with good.open("rb") as file, new_file(bad, replace=False) as writer:
        contents = read_backup(file)
        writer.add(MANIFEST, [run(["tar", "-xOf", good, MANIFEST]).encode()])
        writer.add(ACCOUNTING, contents.accounting.chunks())
        writer.add(FILES, [hostile_tar(disk)])
        writer.finish()
    failed = cloud.neo("slurm", "cluster", "restore", str(bad), "--name", "worse", *identity, code=None)
    assert failed.returncode == 1 and "Operation not permitted" in failed.stderr
    assert "deleted again" in failed.stderr
    wait_until(
        lambda: all(item["metadata"]["name"] != "worse" for item in cloud.clusters()),
        "it is gone",
        seconds=120,
    )
