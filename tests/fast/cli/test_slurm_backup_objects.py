"""`neo slurm cluster backup` to a bucket and `restore` from it, against a real S3 front."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from neocloud.cli.commands.slurm import backup_objects
from neocloud.cli.commands.slurm.backup_file import ACCOUNTING, FILES, MANIFEST, SUMS
from neocloud.cli.commands.slurm.backup_objects import ObjectWriter, folder_in, read_objects
from neocloud.client.errors import ClientError
from tests.fast.cli.conftest import Neo, Ran
from tests.fast.cli.fake_control_plane import CLUSTERS, FakeServer
from tests.fast.cli.test_slurm_backup import BACKUPS, KEY, MANIFEST_OF, SAVE, SPEC, ZSTD, bank, empty, ssh  # noqa: F401
from tests.fast.object_gateway.s3.served import Served, serving

MIB = 1024**2
LARGE = ZSTD + bytes(range(256)) * 150_000
"""Three parts of an upload, and five pieces."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("objects")) as started:
        yield started


@pytest.fixture
def bucket(served: Served) -> str:
    return served.make_bucket()


@pytest.fixture
def slurm(signed_in: Neo, served: Served, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    monkeypatch.setenv("AWS_ENDPOINT_URL", served.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", served.owner.aws_access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", served.owner.secret)
    return lambda *arguments: signed_in("slurm", "cluster", *map(str, arguments), "--env-key")


def keys(served: Served, bucket: str) -> set[str]:
    return {each["Key"] for each in served.client().list_objects_v2(Bucket=bucket).get("Contents", ())}


def read(served: Served, bucket: str, key: str) -> bytes:
    return served.client().get_object(Bucket=bucket, Key=key)["Body"].read()


def put(served: Served, bucket: str, key: str, body: bytes) -> None:
    served.client().put_object(Bucket=bucket, Key=key, Body=body)


def write(served: Served, bucket: str, files: bytes = LARGE, **manifest: Any) -> str:
    """Write a backup as the command does; return its URL."""
    folder = folder_in(f"s3://{bucket}/bank")
    assert folder is not None
    writer = ObjectWriter(served.client(), folder)
    spec = {**SPEC, "login": {"ssh_public_keys": [KEY]}}
    writer.add(MANIFEST, [json.dumps({**MANIFEST_OF, "spec": spec, **manifest}).encode()])
    writer.add(ACCOUNTING, [b"ro", b"", b"ws"])
    writer.add(FILES, [files[: 3 * MIB], files[3 * MIB :]])
    writer.finish()
    return f"s3://{bucket}/bank"


def test_a_backup_is_four_objects_and_nothing_on_this_machine(
    slurm: Callable[..., Ran],
    bank: FakeServer,  # noqa: F811
    ssh: Path,  # noqa: F811
    served: Served,
    bucket: str,
    tmp_path: Path,
) -> None:
    ssh.write_text(f"#!/bin/sh\n{SAVE}\n")
    ran = slurm("backup", "bank", "--to", f"s3://{bucket}/night/1")
    assert ran.code == 0, ran.err
    assert keys(served, bucket) == {f"night/1/{name}" for name in (MANIFEST, ACCOUNTING, FILES, SUMS)}
    assert read(served, bucket, f"night/1/{FILES}") == ZSTD + b"and files"
    assert read(served, bucket, f"night/1/{ACCOUNTING}") == b"rows!!"
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path != ssh]
    assert not [path for path in kept if b"and files" in path.read_bytes()]
    ran = slurm("backup", "bank", "--to", f"s3://{bucket}/night/1")
    assert ran.code == 7 and "--force" in ran.err
    assert slurm("backup", "bank", "--to", f"s3://{bucket}/night/1", "--force").code == 0


def test_what_fails_is_no_complete_backup(
    slurm: Callable[..., Ran],
    bank: FakeServer,  # noqa: F811
    ssh: Path,  # noqa: F811
    served: Served,
    bucket: str,
) -> None:
    url = write(served, bucket)
    ssh.write_text(f"#!/bin/sh\n{SAVE}; head -c 40000000 /dev/zero; echo Input/output error >&2; exit 2\n")
    ran = slurm("backup", "bank", "--to", url, "--force")
    assert ran.code == 1 and "Input/output error" in ran.err
    assert f"bank/{SUMS}" not in keys(served, bucket), "an earlier one that is replaced in part is none"
    assert not served.client().list_multipart_uploads(Bucket=bucket).get("Uploads")
    ran = slurm("restore", url, "--check")
    assert ran.code == 1 and "not complete" in ran.err


@pytest.mark.parametrize("target", ["s3://{bucket}", "s3://../etc", "s3://{bucket}/a\0b"])
def test_what_names_no_folder_is_refused(target: str, bucket: str) -> None:
    with pytest.raises(ClientError):
        folder_in(target.format(bucket=bucket))


def test_a_bucket_of_others_is_refused_before_anything_is_dumped(
    slurm: Callable[..., Ran],
    bank: FakeServer,  # noqa: F811
) -> None:
    ran = slurm("backup", "bank", "--to", "s3://bucket-of-others/x")
    assert ran.code != 0 and "bucket-of-others" in ran.err
    assert not bank.asked(f"{BACKUPS}/DumpAccounting")


def test_it_is_restored_from_the_bucket(
    slurm: Callable[..., Ran],
    empty: FakeServer,  # noqa: F811
    ssh: Path,  # noqa: F811
    served: Served,
    bucket: str,
    tmp_path: Path,
) -> None:
    ssh.write_text(f"#!/bin/sh\ncat > {tmp_path}/files\n")
    ran = slurm("restore", write(served, bucket))
    assert ran.code == 0, ran.err
    assert (tmp_path / "files").read_bytes() == LARGE
    [written] = empty.asked(f"{BACKUPS}/WriteAccounting")
    assert written.data == b"rows"


def test_objects_that_change_after_the_check_are_not_restored(
    slurm: Callable[..., Ran],
    empty: FakeServer,  # noqa: F811
    ssh: Path,  # noqa: F811
    served: Served,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody who may write to the bucket replaces the files while the new cluster starts."""
    url, checked = write(served, bucket), backup_objects.read_objects

    def read_then_replaced(s3: Any, folder: Any) -> Any:
        contents = checked(s3, folder)
        put(served, bucket, f"bank/{FILES}", ZSTD + b"hostile".ljust(len(LARGE) - len(ZSTD)))
        return contents

    monkeypatch.setattr(backup_objects, "read_objects", read_then_replaced)
    ssh.write_text("#!/bin/sh\ncat > /dev/null\n")
    ran = slurm("restore", url)
    assert ran.code == 1 and "has changed since it was checked" in ran.err
    assert len(empty.asked(f"{CLUSTERS}/Delete")) == 1


@pytest.mark.parametrize("name", [MANIFEST, ACCOUNTING, FILES, SUMS])
def test_what_was_changed_or_is_missing_is_refused(served: Served, bucket: str, name: str) -> None:
    folder = folder_in(write(served, bucket, ZSTD + b"files"))
    assert folder is not None
    body = read(served, bucket, f"bank/{name}")
    put(served, bucket, f"bank/{name}", body[:-1] + bytes([body[-1] ^ 1]))
    with pytest.raises(ClientError, match="does not have the sums"):
        read_objects(served.client(), folder)
    served.client().delete_object(Bucket=bucket, Key=f"bank/{name}")
    with pytest.raises(ClientError, match="not complete"):
        read_objects(served.client(), folder)


def test_a_huge_text_is_not_read(served: Served, bucket: str) -> None:
    folder = folder_in(write(served, bucket, ZSTD))
    assert folder is not None
    put(served, bucket, f"bank/{SUMS}", bytes(5 * MIB))
    with pytest.raises(ClientError, match="a text in it is too long"):
        read_objects(served.client(), folder)
