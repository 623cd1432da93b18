"""Jobs use buckets with keys that the cloud brings to the nodes: nobody copied one."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from neocloud.core import contract
from neocloud.testing.waiting import wait_until
from tests.e2e.cloud import open_client
from tests.e2e.cluster import SHARED, Cluster
from tests.e2e.test_cluster_people import People, Person, quants
from tests.e2e.test_storage_from_nodes import libraries

__all__ = ["libraries", "quants"]
CLUSTERS = "neocloud.slurm.v1.ClusterService"
FOLDER = "/var/lib/neocloud/storage"
DRIVE = """
import boto3, getpass, sys
s3 = boto3.client("s3")
s3.put_object(Bucket="jobs", Key=getpass.getuser(), Body=b"from a job")
print(s3.get_object(Bucket="jobs", Key=getpass.getuser())["Body"].read().decode())
"""


MOUNT = """
import ctypes, os, subprocess
libc = ctypes.CDLL(None, use_errno=True)
def said(result):
    return "yes" if result == 0 else os.strerror(ctypes.get_errno())
print("device", os.path.exists("/dev/fuse"))
print("node", subprocess.run(["mknod", "/tmp/fuse", "c", "10", "229"], capture_output=True).returncode != 0)
print("mount", said(libc.mount(b"fuse", b"/tmp", b"fuse", 0, b"fd=3,rootmode=40000,user_id=0,group_id=0")))
print("user namespace", said(libc.unshare(0x10000000)))
print("mount namespace", said(libc.unshare(0x20000)))
"""
"""Requirements of a user's file system, each asked for by a job."""


@pytest.fixture(scope="module")
def bucket(bank: Cluster) -> Iterator[str]:
    """The bucket that the job uses, with the job's program on the cluster."""
    bank.cloud.neo("storage", "bucket", "create", "jobs")
    bank.ssh(f"cat >{SHARED}/job.py", stdin=DRIVE)
    yield "jobs"
    bank.cloud.neo("storage", "rm", "s3://jobs/", "--recursive", "--yes", code=None)
    bank.cloud.neo("storage", "bucket", "delete", "jobs", "--yes")


def change(bank: Cluster, account_id: str, *users: str) -> None:
    """Set the service account and the users of the cluster."""
    with open_client(bank.cloud) as client:
        cluster = client.call(f"{CLUSTERS}/Get", {"id": bank.id})
        cluster.spec.service_account_id = account_id
        del cluster.spec.users[:]
        for name in users:
            cluster.spec.users.add(name=name)
        request = contract.message("neocloud.slurm.v1.UpdateClusterRequest")(
            metadata={"id": bank.id}, spec=cluster.spec
        )
        client.call(f"{CLUSTERS}/Update", request, reset_mask=["spec.users", "spec.service_account_id"])


def key_holders(bank: Cluster) -> list[str]:
    return [key["user"] for key in bank.record["status"].get("storage_keys", ())]


def test_jobs_of_root_and_of_a_user_act_as_the_service_account(
    bank: Cluster, bucket: str, libraries: str
) -> None:
    neo, neo_json = bank.cloud.neo, bank.cloud.neo_json
    account = neo_json("iam", "service-account", "create", "trainer")["metadata"]["id"]
    neo("iam", "group-membership", "create", "--parent-id", "editors", "--member-id", "trainer")
    try:
        change(bank, account, "kim")
        wait_until(lambda: key_holders(bank) == ["root", "kim"], "both have keys", seconds=180)
        script = f"PYTHONPATH={libraries} python3 {SHARED}/job.py"
        assert bank.run_job(script, "--nodelist=worker-1").strip() == "from a job"
        bank.ssh("cat >/home/kim/job.sh", stdin=f"#!/bin/bash\n{script}\n")
        command = "cd && sbatch --wait --output=out --nodelist=worker-0 job.sh; cat out"
        assert bank.ssh(f"su -l kim -c '{command}'").splitlines()[-1] == "from a job"
        listed = neo("storage", "ls", "s3://jobs/").stdout
        assert "kim" in listed and "root" in listed
        modes = bank.ssh(f"cd {FOLDER} && stat -c '%U %a' 0.json $(id -u kim).json").splitlines()
        assert modes == ["root 400", "kim 400"]
        assert bank.try_ssh(f"su kim -c 'cat {FOLDER}/0.json'").returncode == 1
        # Slurm's accounting and its record of a job have where the key is, and not the key.
        secret = json.loads(bank.ssh(f"cat {FOLDER}/0.json"))["SecretAccessKey"]
        said = bank.ssh("sacct --parsable2 --format=ALL; scontrol show job; env")
        assert secret not in said
    finally:
        change(bank, "")
    wait_until(lambda: not key_holders(bank), "the keys are gone", seconds=180)
    assert bank.ssh(f"ls {FOLDER}").split() == ["neo-rclone", "rclone.config"], "which have no key"


def test_a_job_cannot_mount_and_copies_with_rclone(bank: Cluster, bucket: str) -> None:
    """Neither root nor a user: mounting would be a way out of the shared root."""
    program = shutil.which("rclone")
    if program is None:
        pytest.skip("rclone is not installed")
    neo, neo_json = bank.cloud.neo, bank.cloud.neo_json
    account = neo_json("iam", "service-account", "create", "copier")["metadata"]["id"]
    neo("iam", "group-membership", "create", "--parent-id", "editors", "--member-id", "copier")
    bank.copy_in(Path(program), "/usr/local/bin/rclone")
    bank.ssh("chmod 755 /usr/local/bin/rclone; cat >/usr/local/share/mount.py", stdin=MOUNT)
    try:
        change(bank, account, "kim")
        wait_until(lambda: key_holders(bank) == ["root", "kim"], "both have keys", seconds=180)
        copy = f"{FOLDER}/neo-rclone"
        work = (
            f"python3 /usr/local/share/mount.py; {copy} mount neo:jobs /mnt 2>&1; mkdir /tmp/made;"
            f" date > /tmp/made/$(id -un)-copied; {copy} copy /tmp/made neo:jobs/made 2>&1;"
            f" {copy} lsf neo:jobs/made 2>&1"
        )
        refused = [
            "device False",
            "node True",
            "mount Operation not permitted",
            "user namespace Operation not permitted",
            "mount namespace Operation not permitted",
        ]
        said = bank.run_job(work, "--nodelist=worker-1").splitlines()
        assert said[:5] == refused and "nodes cannot mount" in said[5] and said[6:] == ["root-copied"]
        bank.ssh("cat >/home/kim/copy.sh", stdin=f"#!/bin/bash\n{work}\n")
        command = "cd && sbatch --wait --output=copied --nodelist=worker-0 copy.sh; cat copied"
        said = bank.ssh(f"su -l kim -c '{command}'").splitlines()[1:]
        assert said[:5] == refused and said[6:] == ["kim-copied", "root-copied"]
    finally:
        change(bank, "")
        bank.ssh("rm -f /usr/local/bin/rclone /usr/local/share/mount.py")
    wait_until(lambda: not key_holders(bank), "the keys are gone", seconds=180)


def test_a_person_in_a_group_uses_buckets_after_allowing_it(
    bank: Cluster, bucket: str, libraries: str, quants: People
) -> None:
    eve, project = Person(bank, "eve@bank.example"), ("--project", bank.cloud.server["project_id"])
    eve.cloud.neo("user", "add-ssh-key", f"{eve.key}.pub")
    bank.cloud.neo("iam", "group-membership", "create", "--parent-id", "editors", "--member-id", eve.id)
    quants.add(eve)
    wait_until(lambda: eve.gets_in("eve"), "eve is in", seconds=120)
    script = f"PYTHONPATH={libraries} python3 {SHARED}/job.py"
    command = f"sbatch --wait --output=out --wrap '{script}'; cat out"
    assert "Unable to locate credentials" in eve.ssh("eve", command).stdout.splitlines()[-1]
    eve.cloud.neo("slurm", "storage", "allow", bank.id, *project)
    wait_until(lambda: key_holders(bank) == ["eve"], "eve has a key", seconds=120)
    assert eve.ssh("eve", command).stdout.splitlines()[-1] == "from a job"
    eve.cloud.neo("slurm", "storage", "withdraw", bank.id, *project)
    said = eve.ssh("eve", command).stdout.splitlines()[-1]
    assert "credentials" in said or "InvalidAccessKeyId" in said
