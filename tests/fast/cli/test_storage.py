"""`neo storage`: copies, lists and deletions, against a real S3 front on a real object store."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3.s3.transfer
import httpx
import pytest
from neocloud.messages.neocloud.storage.v1 import TemporaryKey

from neocloud.cli.commands.status import object_rows, object_warnings
from neocloud.cli.storage import checksums, copier, places, service
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile
from tests.fast.cli.conftest import Neo, Ran
from tests.fast.object_gateway.s3.served import KEY, Served, serving

MIB = 1024**2


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("objects")) as started:
        yield started


@pytest.fixture
def storage(neo: Neo, served: Served, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run `neo storage` with the key of the owner of all buckets."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", served.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", served.owner.aws_access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", served.owner.secret)
    return lambda *arguments: neo("storage", *map(str, arguments), "--env-key")


@pytest.fixture
def bucket(served: Served) -> str:
    return served.make_bucket()


def objects(served: Served, bucket: str) -> dict[str, bytes]:
    s3 = served.client()
    found = s3.list_objects_v2(Bucket=bucket).get("Contents", ())
    return {each["Key"]: s3.get_object(Bucket=bucket, Key=each["Key"])["Body"].read() for each in found}


def put(served: Served, bucket: str, *keys: str, body: bytes = b"x") -> None:
    for key in keys:
        served.client().put_object(Bucket=bucket, Key=key, Body=body)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("hello")
    (folder / "sub" / "deep" / "ä b.bin").write_bytes(os.urandom(100_000))
    (folder / "empty").touch()
    return folder


def test_a_file_goes_up_and_comes_back(
    storage: Callable[..., Ran], served: Served, bucket: str, files: Path, tmp_path: Path
) -> None:
    ran = storage("cp", files / "a.txt", f"s3://{bucket}/in/")
    assert (ran.code, ran.out) == (0, "1 file copied (5 bytes).\n")
    assert storage("cp", files / "a.txt", f"s3://{bucket}/named").code == 0
    assert storage("cp", files / "a.txt", f"s3://{bucket}").code == 0
    assert set(objects(served, bucket)) == {"in/a.txt", "named", "a.txt"}
    head = served.client().head_object(Bucket=bucket, Key="in/a.txt", ChecksumMode="ENABLED")
    assert head["ContentType"] == "text/plain" and head["ChecksumCRC64NVME"]
    assert storage("cp", f"s3://{bucket}/in/a.txt", tmp_path / "new" / "name").code == 0
    assert (tmp_path / "new" / "name").read_text() == "hello"
    assert storage("cp", f"s3://{bucket}/in/a.txt", tmp_path / "new").code == 0
    assert (tmp_path / "new" / "a.txt").read_text() == "hello"


def test_a_folder_goes_up_and_comes_back_and_a_second_time_nothing_is_copied(
    storage: Callable[..., Ran], served: Served, bucket: str, files: Path, tmp_path: Path
) -> None:
    ran = storage("cp", "-r", files, f"s3://{bucket}/train")
    assert ran.code == 0 and "3 files copied" in ran.out
    assert objects(served, bucket) == {f"train/{name}": body for name, body in tree(files).items()}
    assert storage("cp", "-r", files, f"s3://{bucket}/train/").out == (
        "0 files copied (0 bytes), 3 there already.\n"
    )
    back = tmp_path / "back"
    assert storage("cp", "-r", f"s3://{bucket}/train", back).code == 0
    assert tree(back) == tree(files)
    (back / "a.txt").write_text("hallo")  # as long as before
    assert "1 file copied (5 bytes), 2 there already" in storage("sync", f"s3://{bucket}/train", back).out
    assert tree(back) == tree(files)


def test_large_files_go_in_parts(
    storage: Callable[..., Ran],
    served: Served,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copier, "PART_BYTES", 5 * MIB)
    body = os.urandom(12 * MIB)
    (tmp_path / "big").write_bytes(body)
    assert storage("cp", tmp_path / "big", f"s3://{bucket}/big").code == 0
    assert served.client().head_object(Bucket=bucket, Key="big", PartNumber=1)["PartsCount"] == 3
    assert storage("cp", f"s3://{bucket}/big", tmp_path / "back").code == 0
    assert (tmp_path / "back").read_bytes() == body
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "big").write_bytes(body)
    assert "1 there already" in storage("sync", tmp_path / "sub", f"s3://{bucket}").out


def test_objects_of_other_clients_are_compared_too(
    storage: Callable[..., Ran], served: Served, bucket: str, tmp_path: Path
) -> None:
    """They have another checksum, or only those of their parts."""
    s3, body = served.client(), os.urandom(11 * MIB)
    parts = boto3.s3.transfer.TransferConfig(multipart_threshold=MIB, multipart_chunksize=5 * MIB)
    s3.upload_fileobj(io.BytesIO(body), bucket, "parts", Config=parts)
    for name in ("CRC32", "CRC32C", "SHA256", "SHA1"):
        s3.put_object(Bucket=bucket, Key=name, Body=name.encode(), ChecksumAlgorithm=name)
    upload = s3.create_multipart_upload(Bucket=bucket, Key="composite", ChecksumAlgorithm="SHA256")
    where = {"Bucket": bucket, "Key": "composite", "UploadId": upload["UploadId"]}
    part = s3.upload_part(**where, PartNumber=1, Body=body, ChecksumAlgorithm="SHA256")
    done = {"PartNumber": 1, "ETag": part["ETag"], "ChecksumSHA256": part["ChecksumSHA256"]}
    s3.complete_multipart_upload(**where, MultipartUpload={"Parts": [done]})
    assert storage("sync", f"s3://{bucket}", tmp_path / "in").code == 0
    assert (
        "0 files copied (0 bytes), 6 there already" in storage("sync", f"s3://{bucket}", tmp_path / "in").out
    )
    assert "6 there already" in storage("sync", tmp_path / "in", f"s3://{bucket}").out
    (tmp_path / "in" / "parts").write_bytes(body[::-1])
    (tmp_path / "in" / "SHA1").write_text("sha1")
    assert "2 files copied" in storage("sync", tmp_path / "in", f"s3://{bucket}").out


def test_dry_runs_change_nothing(
    storage: Callable[..., Ran], served: Served, bucket: str, files: Path, tmp_path: Path
) -> None:
    put(served, bucket, "old", "a.txt", body=b"hello")
    before = objects(served, bucket)
    ran = storage("sync", files, f"s3://{bucket}", "--delete", "--dry-run")
    assert f"would copy {files}/empty to s3://{bucket}/empty\n" in ran.out
    assert f"would delete s3://{bucket}/old\n" in ran.out and "a.txt" not in ran.out
    assert "2 files copied" in ran.out and "1 there already, 1 deleted" in ran.out
    assert storage("mv", "-r", f"s3://{bucket}", tmp_path / "none", "--dry-run").code == 0
    assert storage("rm", "-r", f"s3://{bucket}", "--dry-run").out.count("would delete") == 2
    assert objects(served, bucket) == before and not (tmp_path / "none").exists()


def test_sync_deletes_what_is_not_at_the_source_where_it_is_told_to(
    storage: Callable[..., Ran], served: Served, bucket: str, files: Path, tmp_path: Path
) -> None:
    put(served, bucket, "to/old", "other")
    storage("sync", files, f"s3://{bucket}/to")
    assert "to/old" in objects(served, bucket)
    ran = storage("sync", files, f"s3://{bucket}/to", "--delete", "-o", "json")
    assert json.loads(ran.out)["deleted"] == 1
    assert set(objects(served, bucket)) == {"other", *(f"to/{name}" for name in tree(files))}
    back = tmp_path / "back"
    (back / "sub").mkdir(parents=True)
    (back / "sub" / "mine").touch()
    (back / "link").symlink_to(files)
    assert storage("sync", f"s3://{bucket}/to", back, "--delete").code == 0
    assert tree(back) == tree(files) and (back / "link").is_symlink()
    ran = storage("sync", f"s3://{bucket}/none", back, "--delete")
    assert ran.code == 1 and "would delete all 3 files" in ran.err
    assert tree(back) == tree(files)


def test_moves_remove_the_source(
    storage: Callable[..., Ran], served: Served, bucket: str, files: Path
) -> None:
    before = tree(files)
    ran = storage("mv", "-r", files, f"s3://{bucket}/a")
    assert ran.code == 0 and "3 files moved" in ran.out and not tree(files)
    assert storage("mv", "-r", f"s3://{bucket}/a", f"s3://{bucket}/b").code == 0
    assert objects(served, bucket) == {f"b/{name}": body for name, body in before.items()}
    assert storage("mv", f"s3://{bucket}/b/a.txt", f"s3://{bucket}/c").code == 0
    assert "b/a.txt" not in objects(served, bucket) and objects(served, bucket)["c"] == b"hello"
    for target in (f"s3://{bucket}/c", f"s3://{bucket}"):
        assert storage("mv", f"s3://{bucket}/c", target).code == 2
    assert storage("cp", "-r", f"s3://{bucket}/b", f"s3://{bucket}/b/inner").code == 2
    assert objects(served, bucket)["c"] == b"hello"


def test_lists(storage: Callable[..., Ran], served: Served, bucket: str) -> None:
    put(served, bucket, "a", "b/c", "b/d")
    assert bucket in storage("ls").out
    lines = storage("ls", f"s3://{bucket}").out.splitlines()
    assert [line.split()[0] for line in lines] == ["KEY", "b/", "a"]
    found = json.loads(storage("ls", f"s3://{bucket}/b/", "-o", "json").out)
    assert [(each["key"], each["size_bytes"]) for each in found] == [("b/c", 1), ("b/d", 1)]
    assert len(json.loads(storage("ls", "-r", f"s3://{bucket}", "-o", "json").out)) == 3
    assert "There is nothing at" in storage("ls", f"s3://{bucket}/x").err


def test_deletions(
    storage: Callable[..., Ran], served: Served, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    put(served, bucket, *(f"many/{number}" for number in range(30)), "many-not", "one")
    refused = storage("rm", f"s3://{bucket}/one")
    assert refused.code == 1 and "one" in objects(served, bucket), "nobody confirmed"
    assert storage("rm", f"s3://{bucket}/one", "--yes").code == 0
    assert storage("rm", f"s3://{bucket}/one", "--yes").code == 3
    assert storage("rm", f"s3://{bucket}", "--yes").code == 2
    assert "30 objects" in storage("rm", "-r", f"s3://{bucket}/many", "--yes").out
    assert set(objects(served, bucket)) == {"many-not"}


def test_links_work_for_anybody_until_they_end(
    storage: Callable[..., Ran], served: Served, bucket: str
) -> None:
    put(served, bucket, "a b", body=b"hello")
    link = storage("presign", f"s3://{bucket}/a b", "--expires-in", "5m").out.strip()
    assert httpx.get(link).text == "hello" and "X-Amz-Expires=300" in link
    upload = storage("presign", f"s3://{bucket}/new", "--put").out.strip()
    assert httpx.put(upload, content=b"by link").status_code == 200
    assert storage("presign", f"s3://{bucket}/none").code == 3
    for time in ("8d", "0", "x", "-1h"):
        assert storage("presign", f"s3://{bucket}/a b", f"--expires-in={time}").code == 2


HOSTILE = ("../x", "a/../../x", "/x", "a//b", "./x", "a/.", "x/", "..")


@pytest.mark.parametrize("key", [*HOSTILE, "a\0b"])
def test_keys_that_are_no_paths_are_refused(key: str) -> None:
    with pytest.raises(places.UnsafeKey):
        places.relative_path(key)


def test_no_key_leaves_the_target_folder(
    storage: Callable[..., Ran], served: Served, bucket: str, tmp_path: Path
) -> None:
    put(served, bucket, *(f"in/{key}" for key in HOSTILE), "in/good", "in/link/evil", "in/out")
    target, outside = tmp_path / "a" / "target", tmp_path / "outside"
    target.mkdir(parents=True)
    outside.mkdir()
    (target / "link").symlink_to(outside)
    (target / "out").symlink_to(outside / "written")
    ran = storage("cp", "-r", f"s3://{bucket}/in", target)
    assert ran.code == 1 and "1 file" not in ran.out and "9 failed" in ran.out
    assert tree(target) == {"good": b"x", "out": b"x"} and not (target / "out").is_symlink()
    assert list(outside.iterdir()) == [] and not tree(outside)
    assert not (tmp_path / "x").exists() and not (tmp_path / "a" / "x").exists()
    assert storage("cp", f"s3://{bucket}/in/..", target).code == 2


def test_links_out_of_the_source_are_not_followed(
    storage: Callable[..., Ran], served: Served, bucket: str, files: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("secret")
    (files / "file-link").symlink_to(tmp_path / "secret")
    (files / "folder-link").symlink_to(tmp_path)
    os.mkfifo(files / "fifo")
    ran = storage("sync", files, f"s3://{bucket}")
    assert (
        ran.code == 0 and "Left out 3, since links are not followed: fifo, file-link, folder-link" in ran.err
    )
    assert b"secret" not in objects(served, bucket).values() and len(objects(served, bucket)) == 3


def test_errors_say_what_to_do(
    storage: Callable[..., Ran], served: Served, bucket: str, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments, code, words in (
        (("cp", files, f"s3://{bucket}"), 2, "--recursive"),
        (("cp", f"s3://{bucket}/none", files), 3, "There is no object"),
        (("ls", "s3://none-such"), 3, "There is no bucket"),
        (("cp", files / "none", f"s3://{bucket}"), 2, "No such file"),
        (("cp", files, files), 2, "Neither place is an object"),
        (("ls", "http://x/y"), 2, "s3://BUCKET"),
        (("sync", files, "s3://UPPER"), 2, "names no bucket"),
    ):
        ran = storage(*arguments)
        assert (ran.code, words in ran.err) == (code, True), ran
    outsider = served.account(permissions=frozenset())
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", outsider.aws_access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", outsider.secret)
    assert storage("ls", f"s3://{bucket}").code == 4
    ran = storage("cp", "-r", files, f"s3://{bucket}")
    assert ran.code == 4 and "3 failed" in ran.out
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr("neocloud.cli.storage.service.ATTEMPTS", 1)
    assert storage("ls", f"s3://{bucket}").code == 5
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    ran = storage("ls")
    assert ran.code == 4 and "AWS_SECRET_ACCESS_KEY" in ran.err


def test_a_changed_object_is_not_left_half(
    storage: Callable[..., Ran],
    served: Served,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(served, bucket, "k", body=b"first")
    (tmp_path / "k").write_text("mine")
    monkeypatch.setattr(checksums, "checksum_of", lambda file, algorithm: "AAAAAAAAAAA=")
    ran = storage("cp", f"s3://{bucket}/k", tmp_path / "k")
    assert ran.code == 1 and "other bytes" in ran.err
    assert tree(tmp_path / "").get("k") == b"mine" and not list(tmp_path.glob(".*partial"))


def test_ctrl_c_leaves_no_unfinished_upload(
    storage: Callable[..., Ran],
    served: Served,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copier, "PART_BYTES", 5 * MIB)
    folder = tmp_path / "sparse"
    folder.mkdir()
    for number in range(4):
        with (folder / str(number)).open("wb") as file:
            file.truncate(200 * MIB)
    s3 = served.client()

    def interrupt() -> None:
        while not s3.list_multipart_uploads(Bucket=bucket).get("Uploads"):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    ran = storage("cp", "-r", folder, f"s3://{bucket}")
    thread.join()
    assert ran.code == 130 and "The same command continues" in ran.err
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)
    assert all(size == 200 * MIB for size in _sizes(s3, bucket)), "what is there is whole"


def _sizes(s3: Any, bucket: str) -> list[int]:
    return [each["Size"] for each in s3.list_objects_v2(Bucket=bucket).get("Contents", ())]


def test_the_help_of_neo_loads_no_client_of_s3() -> None:
    script = (
        "import sys; from neocloud.cli.main import run; run(['storage', '--help']); print(sorted(m for m in"
    )
    script += " sys.modules if m.partition('.')[0] in ('botocore', 's3transfer', 'awscrt')))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"


def test_places() -> None:
    for text in ("", "s3://", "s3://a", "s3://A-b/c", "s3://bucket/" + "k" * 1025, "gs://bucket/x", "a\0b"):
        with pytest.raises(ClientError):
            places.place_of(text)
    assert places.place_of("s3://bucket/a//b") == places.BucketPlace("bucket", "a//b")
    assert places.overlap(places.BucketPlace("bucket", "a"), places.BucketPlace("bucket", "a/b"))
    assert not places.overlap(places.BucketPlace("bucket", "a"), places.BucketPlace("bucket", "ab"))


def test_an_operator_verifies_all_objects(neo: Neo, tmp_path: Path) -> None:
    home = tmp_path / "cloud"
    home.mkdir(mode=0o700)
    ran = neo("storage", "verify", "--home", str(home))
    assert ran.code == 1 and "There is no cloud" in ran.err
    (home / "server.lock").touch()
    ran = neo("storage", "verify", "--home", str(home))
    assert ran.code == 1 and "There is no object store" in ran.err
    with serving(home) as served:
        (home / "objects" / "store.key").write_text(KEY.hex())
        (home / "objects" / "store.key").chmod(0o600)
        bucket = served.make_bucket()
        put(served, bucket, "dir/k", body=os.urandom(100_000))
        ran = neo("storage", "verify", "--home", str(home))
        assert (ran.code, ran.out) == (0, "Read 1 version (98 KiB): all are whole.\n")
        (blob,) = (path for path in (home / "objects" / "blobs").glob("*/*") if path.is_file())
        stored = blob.read_bytes()
        blob.write_bytes(bytes([stored[0] ^ 1]) + stored[1:])
        ran = neo("storage", "verify", "--home", str(home))
        assert ran.code == 1 and ran.out.splitlines()[1].split() == [
            *(bucket, "dir/k", "null", "the", "stored", "bytes", "are", "damaged")
        ]
        found = json.loads(neo("storage", "verify", "--home", str(home), "-o", "json").out)
        assert (found["problem_count"], found["problems"][0]["key"]) == (1, "dir/k")


def test_status_says_what_was_verified_and_what_nobody_owns() -> None:
    scrub: dict[str, Any] = {"finished_at": "2026-11-25T02:30:00+00:00", "versions": 3, "bytes": 2048}
    whole = {"scrub": {**scrub, "problem_count": 0, "problems": []}, "orphan_bucket_count": 0}
    assert list(object_rows(whole)) == [("  verified", "2026-11-25 02:30 UTC: 3 versions (2 KiB), all whole")]
    assert list(object_warnings(whole)) == [] and list(object_rows({})) == []
    problem = {"bucket": "b", "key": "k", "version_id": "v", "what": "the stored bytes are missing"}
    orphan = {"id": "storagebucket-e00", "name": "stray"}
    damaged = {
        "scrub": {**scrub, "problem_count": 1, "problems": [problem]},
        "orphan_bucket_count": 1,
        "orphan_buckets": [orphan],
    }
    first, second = object_warnings(damaged)
    assert "b/k (version v): the stored bytes are missing" in first and "stray (storagebucket-e00)" in second
    assert "1 problem" in str(list(object_rows(damaged)))


def test_status_says_whether_the_engine_of_the_bodies_works() -> None:
    at = "2026-11-25T02:30:00+00:00"
    place = {"name": "s3://b/p", "endpoint": "http://e:1", "since": at, "problem": ""}
    assert ("  bodies in", "s3://b/p at http://e:1, which works") in object_rows({"blob_place": place})
    assert list(object_warnings({"blob_place": place})) == []
    away = {"blob_place": {**place, "problem": "ConnectionError: refused."}}
    assert "which does not work" in str(list(object_rows(away)))
    (warning,) = object_warnings(away)
    assert "since 2026-11-25 02:30 UTC: ConnectionError: refused." in warning and "SlowDown" in warning


def test_other_machines_sign_in_over_tls(neo: Neo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path / "objects", tls=True) as served:
        bucket = served.make_bucket()
        monkeypatch.setenv("AWS_ENDPOINT_URL", served.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", served.owner.aws_access_key_id)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", served.owner.secret)
        monkeypatch.setattr("neocloud.cli.storage.service.ATTEMPTS", 1)
        assert neo("storage", "ls", f"s3://{bucket}", "--env-key").code == 5, "the authority is not trusted"
        monkeypatch.setenv("AWS_CA_BUNDLE", str(served.authority))
        (tmp_path / "a").write_text("hello")
        assert neo("storage", "cp", str(tmp_path / "a"), f"s3://{bucket}", "--env-key").code == 0
        assert objects(served, bucket) == {"a": b"hello"}


@pytest.mark.parametrize(
    ("home", "api", "endpoint", "tls_port", "url"),
    [
        ("/home", "127.0.0.1:7370", "127.0.0.1:8902", 0, "http://127.0.0.1:8902"),
        ("", "localhost:7370", "127.0.0.1:8902", 8903, "http://127.0.0.1:8902"),
        ("", "cloud.example:7372", "127.0.0.1:8902", 8903, "https://cloud.example:8903"),
        ("", "[2001:db8::1]:7372", "127.0.0.1:8902", 8903, "https://[2001:db8::1]:8903"),
        ("", "cloud.example:7372", "127.0.0.1:8902", 0, "own machine only"),
        ("", "127.0.0.1:7370", "", 0, "does not run yet"),
    ],
)
def test_where_objects_are(home: str, api: str, endpoint: str, tls_port: int, url: str) -> None:
    key = TemporaryKey(endpoint=endpoint, tls_port=tls_port)
    profile = Profile("test", api, "", home=home)
    if "://" in url:
        assert service.endpoint_of(key, profile, api) == url
    else:
        with pytest.raises(ClientError, match=url):
            service.endpoint_of(key, profile, api)
