"""Full disks, damaged blobs, gone clients and second processes: an error with words, and nothing lost."""

import asyncio
import errno
import json
import os
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import pytest

from neocloud.object_gateway.work.scrub import Scrubber, ScrubResult, read_result, seconds_until_due
from neocloud.object_store.blobs import files as file_blobs
from neocloud.object_store.blobs.files import FileBlobs
from neocloud.object_store.errors import (
    Damaged,
    IncompleteBody,
    StoreFull,
    StoreUnavailable,
)
from neocloud.object_store.garbage import collect, sweep_orphans
from neocloud.object_store.metadata.transaction import Transaction
from neocloud.object_store.store import ObjectStore, open_store
from neocloud.object_store.types import Attributes, ByteRange
from neocloud.object_store.verification import Checked, Problem, verify_bucket, verify_store
from neocloud.testing.waiting import FakeClock
from tests.fast.object_store.stores import (
    KEY,
    KIB,
    MIB,
    check_sums,
    files,
    get,
    keys,
    make_bucket,
    opened,
    put,
    put_part,
)

FULL = OSError(errno.ENOSPC, "No space left on device")


async def test_a_flipped_byte_is_never_returned(tmp_path: Path) -> None:
    body = os.urandom(3 * MIB)
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "k", body)
        (path,) = files(tmp_path)
        assert [each async for each in verify_bucket(store.engine, bucket.id)] == []
        with path.open("r+b") as file:
            file.seek(2 * MIB + 5)
            byte = file.read(1)
            file.seek(2 * MIB + 5)
            file.write(bytes([byte[0] ^ 1]))
        async with await store.open_read(bucket.id, "k") as reader:
            got = b""
            with pytest.raises(Damaged):
                async for chunk in reader:
                    got += chunk
        assert body.startswith(got)
        assert await get(store, bucket, "k", range=ByteRange(0, MIB - 1)) == body[:MIB]
        with pytest.raises(Damaged):
            await store.open_read(bucket.id, "k", range=ByteRange(2 * MIB - 1, 2 * MIB - 1))
        problems = [each async for each in verify_bucket(store.engine, bucket.id)]
        assert problems == [Problem("k", "null", "the stored bytes are damaged")]
        assert not store.engine.pins


@pytest.mark.parametrize("what", ("missing", "short", "long", "swapped"))
async def test_a_blob_that_is_not_the_one_is_an_error(tmp_path: Path, what: str) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "k", os.urandom(100 * KIB))
        (path,) = files(tmp_path)
        await put(store, bucket, "other", os.urandom(100 * KIB))
        (other,) = set(files(tmp_path)) - {path}
        content = path.read_bytes()
        if what == "missing":
            path.unlink()
        elif what == "swapped":
            path.write_bytes(other.read_bytes())
        else:
            path.write_bytes(content[:-1] if what == "short" else content + b"x")
        if what == "long":
            assert len(await get(store, bucket, "k")) == 100 * KIB
            return
        with pytest.raises(Damaged):
            await get(store, bucket, "k")
        assert len(await get(store, bucket, "other")) == 100 * KIB


async def test_an_inline_body_that_was_changed_is_an_error(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "k", b"secret")
        await put(store, bucket, "other", b"public")
    with sqlite3.connect(tmp_path / "meta.db") as connection:
        assert b"secret" not in (tmp_path / "meta.db").read_bytes()
        connection.execute(
            "UPDATE content SET inline = (SELECT inline FROM content WHERE id = 2) WHERE id = 1"
        )
    connection.close()
    async with opened(tmp_path) as store:
        with pytest.raises(Damaged):
            await get(store, bucket, "k")


async def test_counters_that_were_changed_are_reported(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "k", b"12345")
        await store.engine.database.write(
            lambda tx: tx.connection.execute("UPDATE held SET bytes = 7") and None
        )
        (problem,) = [each async for each in verify_bucket(store.engine, bucket.id)]
        assert "+2 bytes more are counted" in problem.what


@pytest.mark.parametrize("step", ("open", "write", "fdatasync"))
async def test_a_full_disk_for_blobs(tmp_path: Path, step: str) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "k", b"before")
        with mock.patch.object(file_blobs.os, step, side_effect=FULL), pytest.raises(StoreFull, match="full"):
            await put(store, bucket, "k", b"x" * 3 * MIB)
        assert await get(store, bucket, "k") == b"before"
        await put(store, bucket, "k", b"y" * 100 * KIB)
        assert len(files(tmp_path)) == 1
    check_sums(tmp_path)


async def test_the_last_room_of_a_disk_is_for_metadata(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as executor:
        blobs = FileBlobs(tmp_path / "blobs", executor)
        async with opened(tmp_path, blobs=blobs) as store:
            bucket = await make_bucket(store)
            await put(store, bucket, "k", b"x" * 100 * KIB)
            blobs.min_free_bytes = 2**62
            with pytest.raises(StoreFull):
                await put(store, bucket, "k2", b"x" * 100 * KIB)
            assert len(await get(store, bucket, "k")) == 100 * KIB
            await store.delete(bucket.id, "k")
            await collect(store.engine)
    assert files(tmp_path) == []


async def test_a_full_disk_for_metadata(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "k", b"before")
        database = store.engine.database._writing  # pyright: ignore[reportPrivateUsage]
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        database.execute(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(StoreFull, match="Nothing was stored or lost"):
            for number in range(20):
                await put(store, bucket, f"small{number}", os.urandom(10 * KIB))
        with pytest.raises(StoreFull):
            await put(store, bucket, "large", os.urandom(30 * KIB), Attributes(metadata={"x": "y" * 20_000}))
        there = await keys(store, bucket)
        assert "large" not in there
        assert files(tmp_path) == []
        database.execute("PRAGMA max_page_count = 1000000")
        await put(store, bucket, "k", b"after")
        assert await get(store, bucket, "k") == b"after"
        for key in there:
            await get(store, bucket, key)
    check_sums(tmp_path)


async def test_one_that_fails_does_not_fail_those_beside_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)

        def fail(tx: Transaction) -> None:
            tx.connection.execute("INSERT INTO fact VALUES ('twice', 1), ('twice', 2)")

        works = [put(store, bucket, f"k{number}", b"1") for number in range(10)]
        results = await asyncio.gather(
            *works[:5], store.engine.database.write(fail), *works[5:], return_exceptions=True
        )
        assert [type(each) for each in results if isinstance(each, BaseException)] == [sqlite3.IntegrityError]
        assert len(await keys(store, bucket)) == 10
    check_sums(tmp_path)


@pytest.mark.parametrize("turns", (0, 1, 2, 5, 10, 30, 100, 300, 1000))
async def test_a_client_that_goes_leaves_nothing_half(tmp_path: Path, turns: int) -> None:
    """A caller is cancelled at any moment of a put: the object is there whole, or not at all."""
    body = os.urandom(2 * MIB + 5)
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        descriptors = len(os.listdir("/proc/self/fd"))
        task = asyncio.ensure_future(put(store, bucket, "k", body))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if store.engine.tasks:
            await asyncio.wait(set(store.engine.tasks))
        if await keys(store, bucket):
            assert await get(store, bucket, "k") == body
        else:
            assert files(tmp_path) == []
        assert len(os.listdir("/proc/self/fd")) == descriptors
    check_sums(tmp_path)


async def test_a_body_of_another_length_leaves_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store, max_size_bytes=5 * MIB)
        for declared, sent in ((2 * MIB, MIB), (MIB, 2 * MIB)):
            with pytest.raises(IncompleteBody):
                async with await store.open_write(bucket.id, declared) as writer:
                    await writer.write(b"x" * sent)
                    await writer.commit("k", Attributes())
        await put(store, bucket, "all", b"x" * 5 * MIB)
        assert len(files(tmp_path)) == 1


async def test_orphans_are_swept_when_they_are_old(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "k", b"x" * 20 * KIB)
        (path,) = files(tmp_path)
        orphan = path.with_name(path.name[:2] + "0" * 30)
        orphan.write_bytes(b"left by a crash")
        os.utime(orphan, (0, 0))
        os.utime(path, (0, 0))
        young = orphan.with_name(path.name[:2] + "1" * 30)
        young.write_bytes(b"being written")
        assert await sweep_orphans(store.engine, clock.now()) == 1
        assert set(files(tmp_path)) == {path, young}


async def test_garbage_that_a_process_left_is_deleted_by_the_next(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "k", b"x" * 20 * KIB)
        async with await store.open_read(bucket.id, "k"):
            await store.delete(bucket.id, "k")
            await collect(store.engine)
            store.engine.pins.update([1])  # still being read when the process ends
    assert len(files(tmp_path)) == 1
    async with opened(tmp_path) as store:
        await collect(store.engine)
    assert files(tmp_path) == []


async def test_a_second_process_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path):
        with pytest.raises(StoreUnavailable, match="Another process"):
            await open_store(tmp_path, KEY, FakeClock())


async def test_another_key_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    with pytest.raises(StoreUnavailable, match="key does not belong"):
        await open_store(tmp_path, bytes(32), FakeClock())
    async with opened(tmp_path):
        pass


async def test_a_file_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    with sqlite3.connect(tmp_path / "meta.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreUnavailable, match="newer release"):
        await open_store(tmp_path, KEY, FakeClock())


async def findings(store: ObjectStore, now: datetime | None = None) -> list[tuple[str, str, str]]:
    found = verify_store(store.engine, now or store.clock.now(), Checked())
    return [(each.bucket, each.problem.key, each.problem.what) async for each in found]


async def test_a_whole_store_is_verified(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket, other = await make_bucket(store), await make_bucket(store, "other")
        await put(store, bucket, "whole", os.urandom(100 * KIB))
        await put(store, bucket, "small", b"x")
        before = set(files(tmp_path))
        await put(store, other, "gone", os.urandom(100 * KIB))
        (path,) = set(files(tmp_path)) - before
        upload = await store.create_upload(other.id, "parts", Attributes())
        await put_part(store, other, "parts", upload.upload_id, 1, os.urandom(100 * KIB))
        (part,) = set(files(tmp_path)) - before - {path}
        assert await findings(store) == []
        path.unlink()
        part.unlink()
        orphan = tmp_path / "blobs" / "ab" / f"ab{'0' * 30}"
        orphan.parent.mkdir(exist_ok=True)
        orphan.write_bytes(b"x" * 10)
        os.utime(orphan, (0, 0))
        await store.engine.database.write(
            lambda tx: tx.connection.execute("UPDATE content SET refs = 5 WHERE blob IS NULL") and None
        )
        found = await findings(store)
        assert found[0] == ("other", "gone", "the stored bytes are missing")
        assert found[1][:2] == ("other", "parts") and "unfinished upload" in found[1][2]
        assert "is used 1 times and counts 5" in found[2][2]
        assert found[3][2] == f"no object uses the blob {orphan.name} (10 bytes)" and len(found) == 4


async def test_a_scrub_is_slow_and_its_result_is_kept(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "k", os.urandom(MIB))
        (path,) = files(tmp_path)
        path.unlink()
        await put(store, bucket, "whole", os.urandom(MIB))
        scrubber = Scrubber(store, clock, MIB / 10)
        running = asyncio.create_task(scrubber.scrub())
        while not running.done():
            await clock.advance(1)
        last = await running
        assert (last.versions, last.problem_count, scrubber.last) == (2, 1, last)
        assert [each.problem.key for each in last.problems] == ["k"]
        assert last.finished_at - last.started_at >= timedelta(seconds=10), "a MiB takes 10 s"
        assert read_result(store) == last
    async with opened(tmp_path, clock) as store:
        assert Scrubber(store, clock, 0).last == last


def test_scrubs_begin_at_two_in_the_morning() -> None:
    midnight = datetime(2026, 1, 10, tzinfo=UTC)
    result = ScrubResult(midnight, midnight, 0, 0, 0, ())
    for hours, last, expected in ((0, None, 2), (2, None, 24), (3, result, 23), (49, result, 1)):
        found = seconds_until_due(midnight + timedelta(hours=hours), last)
        assert found == expected * 3600


async def test_another_process_verifies_beside_the_gateway(tmp_path: Path) -> None:
    home = tmp_path / "objects"
    home.mkdir(mode=0o700)
    (home / "store.key").write_text(KEY.hex())
    (home / "store.key").chmod(0o600)
    command = [sys.executable, "-m", "neocloud.object_gateway.verify", "--home", str(tmp_path)]

    async def run() -> tuple[int | None, list[dict[str, object]]]:
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        out, _ = await process.communicate()
        return process.returncode, [json.loads(line) for line in out.splitlines()]

    async with opened(home) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "k", os.urandom(100 * KIB))
        assert await run() == (0, [{"versions": 1, "bytes": 100 * KIB, "problems": 0}])
        (path,) = files(home)
        path.unlink()
        code, lines = await run()
        assert code == 1 and lines[0]["key"] == "k" and lines[-1]["problems"] == 1
    code, _ = await run()
    assert code == 1, "the gateway does not run"
