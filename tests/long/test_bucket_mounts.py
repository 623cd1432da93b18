"""A bucket is a folder of a machine: rclone and FUSE in a real guest, with the key of a service account."""

import gzip
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cloud import Cloud
from tests.e2e.test_machines import Machine
from tests.e2e.test_storage_from_nodes import NAME

USER_DATA = f"""#!/bin/sh
# The tiny image finds the key of the owner anywhere: OWNER
# What the guide's unit does, once the programs, the authority and the key are there.
until [ -e /etc/neocloud/key ]; do sleep 1; done
mkdir -p /data
ln -sf /proc/mounts /etc/mtab
set -a
. /etc/neocloud/key
RCLONE_CONFIG_NEO_TYPE=s3 RCLONE_CONFIG_NEO_PROVIDER=Other RCLONE_CONFIG_NEO_ENV_AUTH=true
RCLONE_CONFIG_NEO_ENDPOINT=https://{NAME} RCLONE_CONFIG_NEO_REGION=eu-north1
RCLONE_CONFIG_NEO_FORCE_PATH_STYLE=true RCLONE_CA_CERT=/etc/neocloud/ca.pem
exec rclone mount --read-only neo:machines /data
"""


@pytest.fixture
def key(cloud: Cloud) -> Iterator[str]:
    """The variables of an access key that may read the bucket `machines`, which has one object."""
    neo, neo_json = cloud.neo, cloud.neo_json
    neo("storage", "bucket", "create", "machines")
    neo("storage", "cp", str(Path(__file__)), "s3://machines/train/one")
    neo("iam", "service-account", "create", "reader")
    neo("iam", "group-membership", "create", "--parent-id", "viewers", "--member-id", "reader")
    made = neo_json(
        *("iam", "access-key", "create", "--account-service-account-id", "reader"),
        *("--secret-delivery-mode", "EXPLICIT"),
    )
    secret = neo_json("iam", "access-key", "get-secret", made["metadata"]["id"])
    yield f"AWS_ACCESS_KEY_ID={secret['aws_access_key_id']}\nAWS_SECRET_ACCESS_KEY={secret['secret']}\n"
    neo("storage", "rm", "s3://machines/", "--recursive", "--yes")
    neo("storage", "bucket", "delete", "machines", "--yes")


def put(machine: Machine, content: bytes, target: str, mode: str, *, is_packed: bool = False) -> None:
    """Write a file of the guest, by standard input: a key is in no argument and no user data."""
    write = f"umask 077; {'gunzip' if is_packed else 'cat'} >{target}.new && chmod {mode} {target}.new"
    options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR")
    words = [part for option in options for part in ("-o", option)]
    command = ["ssh", "-i", str(machine.key), *words, f"ubuntu@{machine.host}"]
    subprocess.run([*command, f"{write} && mv {target}.new {target}"], input=content, check=True, timeout=300)


def test_a_machine_mounts_a_bucket_with_the_key_of_a_service_account(cloud: Cloud, key: str) -> None:
    programs = {name: shutil.which(name) for name in ("rclone", "fusermount")}
    if not all(programs.values()):
        pytest.skip("rclone or fuse3 is not installed")
    machine = Machine.create(cloud, "mounting", script=USER_DATA)
    try:
        machine.run("mkdir -p /etc/neocloud")
        for name, program in programs.items():
            packed = gzip.compress(Path(str(program)).read_bytes(), 1)
            put(machine, packed, f"/usr/bin/{name}", "755", is_packed=True)
        put(
            machine, (cloud.home / "tls" / "workloads" / "ca.pem").read_bytes(), "/etc/neocloud/ca.pem", "644"
        )
        put(machine, key.encode(), "/etc/neocloud/key", "600")
        wait_until(lambda: "fuse.rclone" in machine.run("cat /proc/mounts"), "the mount", seconds=120)
        assert machine.run("ls /data/train") == "one"
        assert machine.run("cat /data/train/one") == Path(__file__).read_text().strip()
        assert "Read-only" in machine.ssh("touch /data/new").stderr
        shown = machine.run("tr '\\0' '\\n' </proc/$(pidof rclone)/cmdline")
        assert "neo:machines" in shown and "SECRET" not in shown
        assert "SECRET_ACCESS_KEY=" not in str(machine.seen.spec), "nobody who reads the instance has the key"
    finally:
        machine.delete()
