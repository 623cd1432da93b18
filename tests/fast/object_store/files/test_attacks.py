"""Hostile programs on a filesystem of a bucket: they put anything anywhere, at any moment."""

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, ResponseStreamingError

from neocloud.object_store.backends.files import listing, records
from neocloud.object_store.backends.files.paths import HIDDEN_PREFIX
from tests.fast.object_gateway.s3.served import Served, error_of, serving
from tests.fast.object_store.files.test_served import MIB, View, make_view


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("objects")) as served:
        yield served


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of somebody else, with a secret."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text("secret")
    return folder


@pytest.fixture
def view(s3: Served, tmp_path: Path) -> View:
    (tmp_path / "filesystem").mkdir()
    return make_view(s3, tmp_path / "filesystem")


def untouched(outside: Path) -> bool:
    return os.listdir(outside) == ["secret"] and (outside / "secret").read_text() == "secret"


@pytest.mark.parametrize("kind", ["absolute", "relative", "dangling", "to itself"])
def test_links_are_neither_read_nor_written_nor_listed_nor_deleted(
    view: View, outside: Path, kind: str
) -> None:
    targets = {"absolute": (outside / "secret", outside), "relative": ("../outside/secret", "../outside")}
    targets |= {"dangling": ("../outside/new", "../outside/newer"), "to itself": ("file", "folder")}
    for name, target in zip(("file", "folder"), targets[kind], strict=True):
        (view.folder / name).symlink_to(target)
    for key in ("file", "folder/secret", "folder/"):
        assert view.error("get_object", Key=key) == (404, "NoSuchKey")
        assert view.error("head_object", Key=key)[0] == 404
        view.client.delete_object(Bucket=view.name, Key=key)
    for key in ("file", "folder/secret", "folder/new/er", "folder/", "folder"):
        assert view.error("put_object", Key=key, Body=b"") == (400, "InvalidRequest")
    source = f"{view.name}/file"
    assert view.error("copy_object", Key="copy", CopySource=source) == (404, "NoSuchKey")
    assert list(view.pages()) == [([], [])] and list(view.pages(Delimiter="/")) == [([], [])]
    assert list(view.pages(Prefix="folder/")) == [([], [])]
    assert untouched(outside) and sorted(os.listdir(view.folder)) == ["file", "folder"]


def test_the_directory_of_the_bucket_is_no_way_out(s3: Served, view: View, outside: Path) -> None:
    (view.folder / "way").symlink_to(outside)
    for directory in ("/way", "/way/deeper"):
        linked = make_view(s3, view.folder, directory=directory)
        assert linked.error("list_objects_v2") == (400, "InvalidRequest")
        assert linked.error("put_object", Key="key", Body=b"") == (400, "InvalidRequest")
    below = make_view(s3, view.folder, directory="/made/here", uid=1234, gid=4321, file_mode="600")
    assert below.listed() == [] and below.put("key")
    found = (view.folder / "made/here/key").stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (1234, 4321, 0o600)
    assert (view.folder / "made").stat().st_uid == 1234
    assert view.listed() == ["made/here/key"]


def test_a_filesystem_that_is_not_mounted_is_not_written_to(s3: Served, tmp_path: Path) -> None:
    away = make_view(s3, tmp_path / "away")
    assert away.error("put_object", Key="key", Body=b"") == (503, "SlowDown")
    assert away.error("list_objects_v2") == (503, "SlowDown")
    assert not (tmp_path / "away").exists()


@pytest.mark.parametrize(
    "key",
    ["../outside/secret", "a/../../outside/secret", "..", ".", "a/./b", "a//b", "a/\0b", f"{HIDDEN_PREFIX}a"],
)
def test_keys_that_no_file_can_have(view: View, outside: Path, key: str) -> None:
    (view.folder / "a").mkdir()
    (view.folder / f"{HIDDEN_PREFIX}a").write_text("being written")
    for call in ("put_object", "create_multipart_upload"):
        body = {"Body": b"x"} if call == "put_object" else {}
        assert view.error(call, Key=key, **body)[0] == 400
    assert view.error("head_object", Key=key)[0] == 404
    given = {"Objects": [{"Key": key}]} if "\0" not in key else {"Objects": [{"Key": "other"}]}
    assert "Errors" not in view.client.delete_objects(Bucket=view.name, Delete=given)
    assert view.listed() == ["a/"], "the hidden file is not listed"
    assert untouched(outside)


def test_names_and_keys_of_any_length(view: View) -> None:
    assert view.error("put_object", Key="n" * 256, Body=b"") == (400, "KeyTooLongError")
    assert view.error("head_object", Key="n" * 256)[0] == 404
    deepest = "/".join([*["d" * 250] * 4, "d" * 20])
    view.put(deepest)
    assert view.listed() == [deepest]
    (view.folder / deepest).unlink()
    (view.folder / deepest).mkdir()
    assert view.listed(Prefix="d") == [], "its key would have a slash more than 1,024 bytes"


def test_what_is_no_regular_file_and_names_without_utf8_are_not_there(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(view.folder / "fifo")
    os.mknod(view.folder / "device", 0o666 | 0o020000, os.makedev(1, 3))
    with socket.socket(socket.AF_UNIX) as found, monkeypatch.context() as context:
        context.chdir(view.folder)  # the whole path is too long for the address of a socket
        found.bind("socket")
    (view.folder / os.fsdecode(b"not-\xff-utf8")).write_text("x")
    (view.folder / os.fsdecode(b"folder-\xff")).mkdir()
    (view.folder / "line\nbreak \x01").write_text("x")
    for key in ("fifo", "device", "socket"):
        assert view.error("get_object", Key=key) == (404, "NoSuchKey")
        assert view.error("put_object", Key=key, Body=b"") == (400, "InvalidRequest")
    assert view.listed() == ["line\nbreak \x01"]
    os.link(view.folder / "line\nbreak \x01", view.folder / "hard-link")
    assert view.get("hard-link") == b"x"


def test_a_folder_is_swapped_for_a_link_while_keys_are_written(view: View, outside: Path) -> None:
    ends = threading.Event()

    def swap() -> None:
        folder, parked, link = view.folder / "folder", view.folder / "parked", view.folder / "link"
        folder.mkdir(exist_ok=True)
        link.symlink_to(outside)
        while not ends.is_set():
            for one, other in ((folder, parked), (link, folder), (folder, link), (parked, folder)):
                with suppress(OSError):  # a write has made the folder again
                    os.rename(one, other)

    (view.folder / "folder").mkdir()
    view.put("folder/kept")
    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for number in range(25):
            for call, given in (("put_object", {"Body": b"x"}), ("get_object", {}), ("delete_object", {})):
                try:
                    getattr(view.client, call)(Bucket=view.name, Key=f"folder/{number % 3}", **given)
                except ClientError as error:
                    response: Any = error.response
                    assert response["Error"]["Code"] in ("InvalidRequest", "NoSuchKey", "ServiceUnavailable")
            assert not {key for key in view.listed() if "secret" in key}
    finally:
        ends.set()
        swapping.join()
    assert untouched(outside)


def test_a_file_that_changes_while_it_is_read_ends_the_response(view: View) -> None:
    path = view.folder / "file"
    for change in ("longer", "shorter", "replaced"):
        path.write_bytes(b"a" * 48 * MIB)
        body = view.client.get_object(Bucket=view.name, Key="file")["Body"]
        first = body.read(MIB)
        if change == "replaced":
            (view.folder / "new").write_bytes(b"b" * 48 * MIB)
            os.replace(view.folder / "new", path)
            assert first + body.read() == b"a" * 48 * MIB, "what was opened is read to its end"
            continue
        os.truncate(path, 49 * MIB if change == "longer" else 100)
        with pytest.raises(ResponseStreamingError):
            body.read()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[" * 3000,
        b"null",
        b'{"etag":"x\\r\\nSet-Cookie: a","size":1,"mtime_ns":1}',
        b"x" * 3600,
    ],
)
def test_forged_records_are_not_believed(view: View, content: bytes) -> None:
    (view.folder / "file").write_bytes(b"x")
    os.setxattr(view.folder / "file", records.ATTRIBUTE, content)
    head = view.head("file")
    assert head["ETag"].endswith('-1"') and head["Metadata"] == {}
    assert view.listed() == ["file"]


def test_a_record_with_headers_of_an_attacker_is_not_believed(view: View) -> None:
    view.put("file", b"x", Metadata={"who": "me"})
    path = view.folder / "file"
    good = os.getxattr(path, records.ATTRIBUTE)
    for old, new in (
        (b'"who":"me"', b'"who":"me\\r\\nx: y"'),
        (b'"who":"me"', b'"w\\nho":"me"'),
        (b'"headers":{', b'"headers":{"set-cookie":"a",'),
        (b'"headers":{', b'"headers":{"x":1,'),
        (b'"metadata":{', b'"metadata":[],"other":{'),
    ):
        os.setxattr(path, records.ATTRIBUTE, good.replace(old, new))
        assert view.head("file")["Metadata"] == {} and view.head("file")["ETag"].endswith('-1"')
    os.setxattr(path, records.ATTRIBUTE, good)
    assert view.head("file")["Metadata"] == {"who": "me"}


def test_huge_directories_are_bounded(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        (view.folder / f"folder-{number:02}").mkdir()
        for name in range(5):
            (view.folder / f"folder-{number:02}/{name}").touch()
    keys = view.listed()
    assert len(keys) == 200
    monkeypatch.setattr(listing, "EARLY_NAMES", 60)
    assert view.listed() == keys, "pages that end early continue where they ended"
    assert len(list(view.pages())) > 3
    for number in range(40):
        (view.folder / f"links-{number:02}").mkdir()
        for name in range(5):
            (view.folder / f"links-{number:02}/{name}").symlink_to("/")
    assert view.listed() == keys, "also where a page has no key"
    marker, found = "", list[str]()
    while marker is not None:
        page = view.client.list_objects(Bucket=view.name, Marker=marker)
        found += [each["Key"] for each in page.get("Contents", ())]
        marker = page.get("NextMarker") or (found[-1] if page["IsTruncated"] else None)
    assert found == keys
    monkeypatch.setattr(listing, "_SHALLOW_NAMES", 3)
    monkeypatch.setattr(listing, "EARLY_KEYS", 7)
    assert view.listed() == keys
    pages = list(view.pages(Delimiter="-"))
    assert [prefix for _, page in pages for prefix in page] == ["folder-"]
    monkeypatch.setattr(listing, "MAX_FOLDER_NAMES", 60)
    assert view.error("list_objects_v2") == (400, "InvalidRequest")
    assert view.listed(Prefix="folder-07/") == [key for key in keys if key.startswith("folder-07/")]


def test_deep_directories_are_listed(view: View) -> None:
    path = "d/" * 500
    os.makedirs(view.folder / path)
    (view.folder / path / "file").touch()
    assert view.listed() == [f"{path}file"]


def test_a_full_filesystem_says_so_and_keeps_what_was_there(s3: Served, tmp_path: Path) -> None:
    point = tmp_path / "small"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(point)], check=True)
    try:
        small = make_view(s3, point)
        small.put("file", b"first")
        full = {"Key": "file", "Body": b"x" * 4 * MIB}
        assert small.error("put_object", **full) == (403, "QuotaExceeded")
        assert small.error("put_object", **{**full, "Key": "new/file"}) == (403, "QuotaExceeded")
        assert small.get("file") == b"first" and os.listdir(point) == ["file"]
        assert os.statvfs(point).f_bfree * 4096 > 1.9 * MIB, "nothing is left over"
    finally:
        subprocess.run(["umount", str(point)], check=True)


def test_another_bucket_cannot_complete_an_upload(s3: Served, view: View, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = make_view(s3, tmp_path / "other")
    upload = view.client.create_multipart_upload(Bucket=view.name, Key="key")["UploadId"]
    part = view.client.upload_part(Bucket=view.name, Key="key", UploadId=upload, PartNumber=1, Body=b"x")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    call = other.client.complete_multipart_upload
    refused = error_of(call, Bucket=other.name, Key="key", UploadId=upload, MultipartUpload=parts)
    assert refused == (404, "NoSuchUpload")
