"""`neo storage cp` with - as a place, in a process of its own, against a real S3 front."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from neocloud.cli.storage import streams
from neocloud.cli.storage.places import BucketPlace
from neocloud.client import s3_uploads as uploads
from neocloud.client.errors import ClientError
from tests.fast.cli.conftest import Neo
from tests.fast.object_gateway.s3.served import Served, serving

MIB = 1024**2
Start = Callable[..., subprocess.Popen[bytes]]
NEO = "import sys; from neocloud.cli.main import main; sys.argv[0] = 'neo'; main()"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("objects")) as started:
        yield started


@pytest.fixture
def bucket(served: Served) -> str:
    return served.make_bucket()


@pytest.fixture
def start(user_folders: Path, served: Served) -> Iterator[Start]:
    """Start `neo storage cp` with pipes."""
    key = {"AWS_ACCESS_KEY_ID": served.owner.aws_access_key_id, "AWS_SECRET_ACCESS_KEY": served.owner.secret}
    environment = {**os.environ, **key, "AWS_ENDPOINT_URL": served.url}
    started: list[subprocess.Popen[bytes]] = []

    def begin(*arguments: str, stdin: Any = PIPE, stdout: Any = PIPE) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", NEO, "storage", "cp", *arguments, "--env-key"]
        started.append(subprocess.Popen(command, env=environment, stdin=stdin, stdout=stdout, stderr=PIPE))
        return started[-1]

    yield begin
    for each in started:
        each.kill()
        each.wait()
        for pipe in (each.stdin, each.stdout, each.stderr):
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()


def unfinished(served: Served, bucket: str) -> list[Any]:
    return served.client().list_multipart_uploads(Bucket=bucket).get("Uploads", [])


def wait_for_upload(served: Served, bucket: str) -> None:
    s3 = served.client()
    while True:
        for each in unfinished(served, bucket):
            where = {"Bucket": bucket, "Key": each["Key"], "UploadId": each["UploadId"]}
            if s3.list_parts(**where).get("Parts"):
                return


@pytest.mark.parametrize("size", [0, 5, 40 * MIB], ids=["empty", "small", "parts"])
def test_a_stream_goes_up_and_comes_back(start: Start, served: Served, bucket: str, size: int) -> None:
    body = os.urandom(size)
    up = start("-", f"s3://{bucket}/run.tar")
    out, err = up.communicate(body)
    assert (up.returncode, out) == (0, b""), err
    head = served.client().head_object(Bucket=bucket, Key="run.tar", ChecksumMode="ENABLED")
    assert head["ChecksumType"] == "FULL_OBJECT" and head["ContentLength"] == size
    down = start(f"s3://{bucket}/run.tar", "-")
    out, err = down.communicate()
    assert (down.returncode, out == body, err) == (0, True, b"")
    assert not unfinished(served, bucket)


def test_memory_does_not_grow_with_the_stream(start: Start, served: Served, bucket: str) -> None:
    """The peaks of two lengths differ by at most two parts."""
    peaks: list[int] = []
    for parts in (5, 15):
        up, block = start("-", f"s3://{bucket}/k"), os.urandom(uploads.PART_BYTES)
        assert up.stdin is not None
        for _ in range(parts):
            up.stdin.write(block)
        up.stdin.flush()
        status = Path(f"/proc/{up.pid}/status").read_text()
        up.stdin.close()
        assert up.wait() == 0
        peaks.append(int(status.partition("VmHWM:")[2].split()[0]) // 1024)
    assert peaks[1] - peaks[0] < 2 * uploads.PART_BYTES // MIB, peaks


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_leave_neither_an_upload_nor_an_object(
    start: Start, served: Served, bucket: str, number: signal.Signals
) -> None:
    up = start("-", f"s3://{bucket}/k")
    assert up.stdin is not None
    up.stdin.write(os.urandom(20 * MIB))
    up.stdin.flush()
    wait_for_upload(served, bucket)
    up.send_signal(number)  # it waits for more of the stream
    assert up.wait() == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
    assert not unfinished(served, bucket)
    assert "Contents" not in served.client().list_objects_v2(Bucket=bucket)


def test_a_reader_that_leaves_ends_the_download_without_words(
    start: Start, served: Served, bucket: str
) -> None:
    served.client().put_object(Bucket=bucket, Key="k", Body=os.urandom(8 * MIB))
    down = start(f"s3://{bucket}/k", "-")
    assert down.stdout is not None and down.stderr is not None
    assert len(down.stdout.read(1000)) == 1000
    down.stdout.close()
    assert (down.wait(), down.stderr.read()) == (0, b"")


def test_terminals_are_refused(start: Start, served: Served, bucket: str) -> None:
    served.client().put_object(Bucket=bucket, Key="k", Body=b"\x1b]0;hostile\x07")
    master, terminal = os.openpty()
    with os.fdopen(master, "rb"), os.fdopen(terminal, "rb"):
        up = start("-", f"s3://{bucket}/new", stdin=terminal)
        assert b"Standard input is a terminal" in up.communicate()[1] and up.returncode == 2
        down = start(f"s3://{bucket}/k", "-", stdout=terminal)
        assert b"Standard output is a terminal" in down.communicate()[1] and down.returncode == 2


def test_what_is_no_object_is_refused(neo: Neo, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", served.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    for arguments, words in (
        (("cp", "-", "s3://a-bucket/folder/"), "Name an object"),
        (("cp", "-", "s3://a-bucket"), "Name an object"),
        (("cp", "-", "file"), "is not an object"),
        (("cp", "-", "-"), "Neither place"),
        (("cp", "-", "s3://a-bucket/k", "--recursive"), "one stream"),
        (("cp", "s3://a-bucket/k", "-", "--dry-run"), "one stream"),
        (("mv", "s3://a-bucket/k", "-"), "neo storage cp"),
        (("sync", "-", "s3://a-bucket/k"), "neo storage cp"),
    ):
        ran = neo("storage", *arguments, "--env-key")
        assert (ran.code, words in ran.err) == (2, True), ran


def test_a_refused_write_says_so(start: Start, served: Served) -> None:
    up = start("-", "s3://no-such-bucket/k")
    err = up.communicate(os.urandom(17 * MIB))[1]
    assert up.returncode == 3 and b"There is no bucket" in err


class Cut:
    """An S3 client whose answers to GetObject end early."""

    def __init__(self, s3: Any, between: Callable[[], None] = lambda: None) -> None:
        self._s3, self.gets, self._between = s3, 0, between
        self.head_object = s3.head_object

    def get_object(self, **request: Any) -> Any:
        answer = self._s3.get_object(**request)
        self.gets += 1
        if self.gets == 1:
            body, between = answer["Body"], self._between

            class Early:
                def __init__(self) -> None:
                    self.reads = 0

                def read(self, size: int) -> bytes:
                    self.reads += 1
                    if self.reads > 1:
                        between()
                        raise streams.IncompleteReadError(actual_bytes=1, expected_bytes=2)
                    return body.read(size)

                def close(self) -> None:
                    body.close()

            answer["Body"] = Early()
        return answer


def test_a_download_goes_on_where_its_connection_broke(served: Served, bucket: str, tmp_path: Path) -> None:
    body = os.urandom(9 * MIB)
    served.client().put_object(Bucket=bucket, Key="k", Body=body)
    s3: Any = Cut(served.client())
    with (tmp_path / "out").open("wb") as file:
        assert streams.download_stream(s3, BucketPlace(bucket, "k"), file) == len(body)
    assert (tmp_path / "out").read_bytes() == body and s3.gets == 2


def test_an_object_that_was_replaced_meanwhile_is_not_joined(
    served: Served, bucket: str, tmp_path: Path
) -> None:
    def replace() -> None:
        served.client().put_object(Bucket=bucket, Key="k", Body=os.urandom(9 * MIB))

    replace()
    s3: Any = Cut(served.client(), replace)
    with (tmp_path / "out").open("wb") as file, pytest.raises(ClientError) as found:
        streams.download_stream(s3, BucketPlace(bucket, "k"), file)
    assert found.value.code == "DATA_LOSS"


def test_parts_grow_so_that_a_tebibyte_fits() -> None:
    sizes = [uploads.part_bytes(index) for index in range(uploads.MOST_PARTS)]
    assert sum(sizes) > 1024**4 and max(sizes) <= 256 * MIB


def test_an_upload_is_an_object_only_with_the_checksum_of_its_stream(
    served: Served, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "_encoded", lambda value: "AAAAAAAAAAA=")
    (tmp_path / "in").write_bytes(os.urandom(20 * MIB))
    with (tmp_path / "in").open("rb") as file, pytest.raises(ClientError):
        streams.upload_stream(served.client(), file, BucketPlace(bucket, "k"), lambda size: None)
    assert not unfinished(served, bucket)
    assert "Contents" not in served.client().list_objects_v2(Bucket=bucket)
