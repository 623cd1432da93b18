"""`neo storage mount`: real FUSE and rclone on a real S3 front."""

import errno
import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from neocloud.cli.storage import mount_cache, mount_table, mounts
from neocloud.cli.storage.key_server import serving_keys
from neocloud.cli.storage.places import BucketPlace
from neocloud.client.errors import ClientError
from neocloud.testing.waiting import wait_until
from tests.fast.object_gateway.s3.served import REGION, Served, serving

NEWLINE, SHOWN = "data/two\nlines", "two\u240alines"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    try:
        mounts.require_programs()
    except ClientError as error:
        pytest.skip(str(error))
    with serving(tmp_path_factory.mktemp("objects")) as started:
        yield started


@pytest.fixture
def bucket(served: Served) -> str:
    made = served.make_bucket()
    for key in ("data/one", NEWLINE, "data/../../escaped", "data/sub/three"):
        served.client().put_object(Bucket=made, Key=key, Body=key.encode())
    return made


class Mount:
    def __init__(self, served: Served, bucket: str, folder: Path) -> None:
        self.folder, self.issued = folder, 0
        self.lifetime, self.is_signed_in = timedelta(hours=1), True
        self._served, self._place = served, BucketPlace(bucket, "data/")

    def issue(self) -> Mapping[str, object]:
        if not self.is_signed_in:
            raise ClientError("UNAUTHENTICATED", "sign in again")
        self.issued += 1
        owner = self._served.owner
        ends = datetime.now(UTC) + self.lifetime
        names = {"AccessKeyId": owner.aws_access_key_id, "SecretAccessKey": owner.secret, "Token": ""}
        return {**names, "Expiration": f"{ends:%Y-%m-%dT%H:%M:%SZ}"}

    @contextmanager
    def running(self, *, is_writable: bool = False, cache: Path | None = None) -> Iterator[int]:
        self.folder.mkdir(exist_ok=True)
        storage = mounts.Storage(self._served.url, REGION, "")
        with ExitStack() as stack:
            keys = stack.enter_context(serving_keys(self.issue))
            kept = stack.enter_context(self.cached(cache)) if cache else None
            place, folder = self._place, self.folder
            mounting = mounts.mounted(place, folder, storage, keys, is_writable=is_writable, cache=kept)
            yield stack.enter_context(mounting).pid

    def cached(self, cache: Path) -> AbstractContextManager[mount_cache.MountCache]:
        return mount_cache.prepared(cache, "1G", self._served.url, self._place)


@pytest.fixture
def mount(served: Served, bucket: str, tmp_path: Path) -> Mount:
    return Mount(served, bucket, tmp_path / "a folder")


def test_objects_are_files_and_nothing_is_written(mount: Mount, served: Served, bucket: str) -> None:
    with mount.running() as pid:
        names = sorted(os.listdir(mount.folder))
        assert names == ["one", "sub", SHOWN, "．．"]
        assert (mount.folder / "one").read_bytes() == b"data/one"
        assert (mount.folder / SHOWN).read_bytes() == NEWLINE.encode()
        assert not (mount.folder.parent / "escaped").exists()
        with pytest.raises(OSError) as found:
            (mount.folder / "new").write_bytes(b"x")
        assert found.value.errno == errno.EROFS
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert served.owner.secret.encode() not in arguments
        assert served.owner.secret.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
    assert not os.path.ismount(mount.folder) and not os.listdir(mount.folder)


def test_a_file_that_was_closed_is_an_object(mount: Mount, served: Served, bucket: str) -> None:
    with mount.running(is_writable=True):
        body = os.urandom(40 * 1024**2)  # in parts
        (mount.folder / "new").write_bytes(body)
        assert served.client().get_object(Bucket=bucket, Key="data/new")["Body"].read() == body
        with pytest.raises(OSError, match="not permitted"), (mount.folder / "new").open("ab") as file:
            file.write(b"x")
        assert (mount.folder / "new").stat().st_size == len(body)
        (mount.folder / "one").unlink()
        (mount.folder / "sub" / "three").rename(mount.folder / "moved")
    keys = {each["Key"] for each in served.client().list_objects_v2(Bucket=bucket)["Contents"]}
    assert {"data/new", "data/moved", NEWLINE} <= keys and not {"data/one", "data/sub/three"} & keys


def test_a_folder_in_use_is_unmounted(mount: Mount) -> None:
    with mount.running():
        held = os.open(mount.folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert not os.path.ismount(mount.folder)
    finally:
        os.close(held)


def test_a_key_is_asked_for_again_before_it_ends(mount: Mount) -> None:
    mount.lifetime = timedelta(seconds=1)  # so it is old at each request
    with mount.running():
        before = mount.issued
        assert (mount.folder / "one").read_bytes() == b"data/one"
        assert mount.issued > before


def test_who_has_lost_the_sign_in_reads_nothing_and_is_told_that_nothing_is_written(mount: Mount) -> None:
    mount.lifetime = timedelta(seconds=1)
    with mount.running(is_writable=True):
        assert os.listdir(mount.folder)
        file = (mount.folder / "new").open("wb", buffering=0)
        file.write(b"x")
        mount.is_signed_in = False
        with pytest.raises(OSError, match="error"):
            file.close()
        with pytest.raises(OSError, match="error"):
            (mount.folder / "one").read_bytes()


def test_other_programs_get_no_key() -> None:
    with serving_keys(lambda: {"SecretAccessKey": "secret"}) as keys:
        url = keys["AWS_CONTAINER_CREDENTIALS_FULL_URI"]
        token = keys["AWS_CONTAINER_AUTHORIZATION_TOKEN"]
        with httpx.Client(trust_env=False) as client:
            for given in ({}, {"Authorization": "x"}, {"Authorization": f"{token}x"}):
                answer = client.get(url, headers=given)
                assert answer.status_code == 403 and "secret" not in answer.text
            assert client.get(url, headers={"Authorization": token}).json() == {"SecretAccessKey": "secret"}


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path, tmp_path / "file", tmp_path / "none"):
        with pytest.raises(ClientError, match="Name an empty folder"):
            mounts.require_folder(folder)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClientError, match="apt install rclone fuse3"):
        mounts.require_programs()


def test_a_mount_has_its_folder_for_itself(mount: Mount) -> None:
    with mount.running(), pytest.raises(ClientError, match="is mounted at"), mount.running():
        pass
    other = os.open(mount.folder, os.O_RDONLY | os.O_DIRECTORY)  # of a command that has not mounted yet
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ClientError, match="Another command is mounting"), mount.running():
            pass
    finally:
        os.close(other)
    assert not os.path.ismount(mount.folder)


def test_what_was_read_is_on_the_disk_for_its_owner_and_nothing_leads_out(
    mount: Mount, served: Served, bucket: str, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    with mount.running(cache=cache):
        assert (mount.folder / "one").read_bytes() == b"data/one"
        for folder, _, names in os.walk(mount.folder):
            for name in names:
                Path(folder, name).read_bytes()
        kept = [path for path in cache.rglob("*") if path.is_file()]
        assert b"data/one" in [path.read_bytes() for path in kept]
        assert all(not path.stat().st_mode & 0o077 for path in (cache, *cache.iterdir()))
        assert not any(served.owner.secret.encode() in path.read_bytes() for path in kept)
        assert not [path for path in tmp_path.rglob("escaped") if not path.is_relative_to(cache)]
        with pytest.raises(ClientError, match="uses the cache"), mount.cached(cache):
            pass
    # Another object in its place is read, not the copy.
    served.client().put_object(Bucket=bucket, Key="data/one", Body=b"other bytes")
    with mount.running(cache=cache):
        assert (mount.folder / "one").read_bytes() == b"other bytes"


def test_who_has_lost_the_sign_in_reads_nothing_from_the_cache(
    mount: Mount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount.lifetime = timedelta(seconds=1)
    monkeypatch.setattr(mounts, "LISTING_SECONDS", 1)
    with mount.running(cache=tmp_path / "cache"):
        assert (mount.folder / "one").read_bytes() == b"data/one"
        mount.is_signed_in = False

        def is_refused() -> bool:
            try:
                (mount.folder / "one").read_bytes()
            except OSError:
                return True
            return False

        wait_until(is_refused, "the folder to be listed again")


def test_a_cache_that_others_can_reach_is_refused(mount: Mount, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "private")
    (tmp_path / "file").touch()
    for name, said in (("open", "chmod 700"), ("link", "not a folder of yours"), ("file", "File exists")):
        with pytest.raises(ClientError, match=said), mount.cached(tmp_path / name):
            pass
    assert os.listdir(tmp_path / "private") == []
    for text in ("", "0", "-1G", "1", "10 G", "1G --cache-dir=/", "9999999G"):
        with pytest.raises(ClientError, match="is not a size"):
            mount_cache.size_of(text)


def test_only_own_buckets_are_taken_for_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others choose the kind and the source of their mounts, and the names of their folders."""
    me = os.geteuid()
    lines = (
        rf"1 1 0:1 / /a\040b\134 ro,nosuid shared:5 master:1 - fuse.rclone neo:b/x ro,user_id={me}",
        rf"2 1 0:1 / /mine rw - fuse.rclone neo:b rw,user_id={me}",
        rf"3 1 0:1 / /theirs rw - fuse.rclone neo:b rw,user_id={me + 1},group_id=0",
        rf"4 1 0:1 / /named rw - fuse.rclone other:b rw,user_id={me}",
        rf"5 1 0:1 / /tmpfs rw - tmpfs neo:b rw,user_id={me}",
        rf"6 1 0:1 / /fake rw - fuse.rclone neo:b rw,group_id=1user_id={me}",
        rf"7 1 0:1 / /hidden rw - fuse.rclone neo:b rw,user_id={me}",
        r"8 7 0:1 / /hidden rw - ext4 /dev/sda rw",
    )
    monkeypatch.setattr(mount_table, "MOUNTINFO", tmp_path / "mountinfo")
    (tmp_path / "mountinfo").write_text("".join(f"{line}\n" for line in lines))
    own = [each for each in mount_table.mounted_folders() if each.is_bucket]
    shown = [(str(each.folder), each.bucket, each.is_writable) for each in own]
    assert shown == [
        ("/a b\\", "s3://b/x", False),
        ("/mine", "s3://b", True),
        ("/hidden", "s3://b", True),
    ]
    for name in ("theirs", "named", "tmpfs", "fake", "hidden"):
        with pytest.raises(ClientError, match="not a bucket that you have mounted"):
            mount_table.unmount(Path("/") / name, force=True)
