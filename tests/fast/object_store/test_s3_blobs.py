"""Blobs in another S3 engine, which is a real one, and what becomes of objects when it fails."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from neocloud.object_store.blobs.driver import BlobsAway
from neocloud.object_store.blobs.s3 import attempts, driver, spool
from neocloud.object_store.blobs.s3.driver import S3Blobs
from neocloud.object_store.blobs.s3.location import S3Location, read_key, s3_place
from neocloud.object_store.errors import Damaged, StoreBusy, StoreUnavailable
from neocloud.object_store.garbage import collect, sweep_orphans
from neocloud.object_store.store import ObjectStore, open_store
from neocloud.object_store.types import Attributes, CompletedPart
from neocloud.object_store.verification import Checked, verify_store
from neocloud.s3_client.http import Patience
from neocloud.testing.blob_conformance import BlobConformance, names
from neocloud.testing.waiting import FakeClock
from tests import ROOT
from tests.fast.object_gateway.s3.served import REGION, Served, serving
from tests.fast.object_store.engine_proxy import EngineProxy, engine_proxy
from tests.fast.object_store.stores import KEY, KIB, MIB, get, make_bucket, put, put_part

_PREFIXES = itertools.count(1)
LARGE = os.urandom(3 * MIB + 5)


@dataclass
class Behind:
    """The engine behind a proxy, and a place in it that nothing was written to."""

    engine: Served
    proxy: EngineProxy
    place: S3Location

    def keys(self) -> list[str]:
        found = self.engine.client().list_objects_v2(Bucket=self.place.bucket, Prefix=self.place.prefix)
        return [each["Key"].removeprefix(self.place.prefix) for each in found.get("Contents", [])]

    def pieces(self) -> list[str]:
        return [each for each in self.keys() if each != "owner"]

    def another(self) -> "Behind":
        return replace(self, place=replace(self.place, prefix=f"place-{next(_PREFIXES)}/"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("engine")) as served:
        yield served


@pytest.fixture(scope="module")
def bucket(engine: Served) -> str:
    return engine.make_bucket()


@pytest.fixture
def behind(engine: Served, bucket: str, tmp_path: Path) -> Iterator[Behind]:
    with engine_proxy(engine.address) as (proxy, url):
        place = s3_place(f"s3://{bucket}/place-{next(_PREFIXES)}", url, REGION, key_file(engine, tmp_path))
        yield Behind(engine, proxy, place)


def key_file(engine: Served, folder: Path) -> Path:
    file = folder / "engine-key"
    owner = engine.owner
    file.touch(mode=0o600)
    file.write_text(
        f"[default]\naws_access_key_id = {owner.aws_access_key_id}\naws_secret_access_key = {owner.secret}\n"
    )
    return file


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(driver.S3Blobs.__init__, "__defaults__", (Patience(quiet=0.5, pool=5.0),))


@asynccontextmanager
async def opened(home: Path, behind: Behind, clock: FakeClock | None = None) -> AsyncIterator[ObjectStore]:
    store = await open_store(home / "store", KEY, clock or FakeClock(), place=behind.place)
    try:
        yield store
    finally:
        await store.close()


def blobs_of(store: ObjectStore) -> S3Blobs:
    blobs = store.engine.blobs
    assert isinstance(blobs, S3Blobs)
    return blobs


class TestS3Blobs(BlobConformance):
    """They do what every driver does."""

    @pytest.fixture(params=(driver.PIECE_BYTES, 70_000), ids=("whole", "in pieces"))
    async def blobs(
        self,
        behind: Behind,
        tmp_path: Path,
        request: pytest.FixtureRequest,
        monkeypatch: pytest.MonkeyPatch,
    ) -> AsyncIterator[S3Blobs]:
        monkeypatch.setattr(driver, "PIECE_BYTES", request.param)
        monkeypatch.setattr(spool, "MEMORY_BYTES", 50_000)
        async with opened(tmp_path, behind) as store:
            yield blobs_of(store)


async def test_objects_of_every_kind(behind: Behind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "PIECE_BYTES", 16 * 65552)
    async with opened(tmp_path, behind) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "small", b"inline")
        await put(store, bucket, "large", LARGE)
        assert len(behind.pieces()) == 4
        assert (
            LARGE[:100]
            not in behind.engine.client()
            .get_object(Bucket=behind.place.bucket, Key=behind.place.prefix + behind.pieces()[0])["Body"]
            .read()
        )
        assert await get(store, bucket, "large") == LARGE
        upload = await store.create_upload(bucket.id, "parts", Attributes())
        parts = [os.urandom(5 * MIB), os.urandom(100 * KIB)]
        named = [
            CompletedPart(
                number, (await put_part(store, bucket, "parts", upload.upload_id, number, part)).etag
            )
            for number, part in enumerate(parts, 1)
        ]
        await store.complete_upload(bucket.id, "parts", upload.upload_id, named)
        assert await get(store, bucket, "parts") == b"".join(parts)
        found = [each async for each in verify_store(store.engine, store.clock.now(), Checked())]
        assert found == []
        for key in ("large", "parts"):
            await store.delete(bucket.id, key)
        await collect(store.engine)
        assert behind.keys() == ["owner"]
    async with opened(tmp_path, behind) as store:  # the mark is known again
        await put(store, await make_bucket(store), "k", LARGE)
        await blobs_of(store).check()


@pytest.mark.parametrize(
    ("method", "fault"),
    (
        *(("PUT", each) for each in ("503", "500", "stall", "denied", "page")),
        *(("GET", each) for each in ("503", "500", "cut", "stall", "spoilt", "denied", "page")),
    ),
)
async def test_a_failure_is_a_failure_or_is_repaired(
    behind: Behind, tmp_path: Path, method: str, fault: str
) -> None:
    """Nothing short or wrong is ever returned. What may help is tried again, with the same key."""
    async with opened(tmp_path, behind) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "before", LARGE)
        is_final = fault in ("denied", "page")
        behind.proxy.faults = [(method, fault)]
        if is_final:
            with pytest.raises(StoreBusy, match="does not answer"):
                if method == "PUT":
                    await put(store, bucket, "k", LARGE)
                else:
                    await get(store, bucket, "before")
        await put(store, bucket, "k", LARGE)
        assert await get(store, bucket, "k") == await get(store, bucket, "before") == LARGE
        assert behind.proxy.faults == []
        if not is_final:
            behind.proxy.faults = [(method, fault)] * 100
            with pytest.raises((StoreBusy, Damaged)):
                if method == "PUT":
                    await put(store, bucket, "k", LARGE)
                else:
                    await get(store, bucket, "before")
            behind.proxy.faults = []
        assert await get(store, bucket, "before") == await get(store, bucket, "k") == LARGE
        assert blobs_of(store).attempts.problem == ""
    written = [each for each in behind.proxy.seen if each.startswith("PUT") and "owner" not in each]
    assert len(set(written)) <= 4, "each attempt has the same key"


async def test_an_engine_that_is_away(behind: Behind, tmp_path: Path) -> None:
    """It is away at the start, goes away in the middle, and comes back: nothing has to be restarted."""
    behind.proxy.is_down = True
    async with opened(tmp_path, behind) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "small", b"needs no engine")
        with pytest.raises(StoreBusy):
            await put(store, bucket, "k", LARGE)
        assert "ConnectionError" in blobs_of(store).attempts.problem
        behind.proxy.is_down = False
        await put(store, bucket, "k", LARGE)
        assert blobs_of(store).attempts.problem == ""
        behind.proxy.is_down = True
        await store.delete(bucket.id, "k")
        for _ in range(2):
            with pytest.raises(BlobsAway):
                await collect(store.engine)
            with pytest.raises(BlobsAway):
                await sweep_orphans(store.engine, datetime.now(UTC))
        assert await get(store, bucket, "small") == b"needs no engine"
        behind.proxy.is_down = False
        await collect(store.engine)
        assert behind.pieces() == []


async def test_other_places_are_refused(behind: Behind, tmp_path: Path) -> None:
    async with opened(tmp_path, behind) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "k", LARGE)
    other = behind.another()
    for place in (None, other.place):
        with pytest.raises(StoreUnavailable, match=f"are in {behind.place.name}, not in"):
            await open_store(tmp_path / "store", KEY, FakeClock(), place=place)
    files = tmp_path / "files"
    store = await open_store(files, KEY, FakeClock())
    await put(store, await make_bucket(store), "k", LARGE)
    await store.close()
    with pytest.raises(StoreUnavailable, match="are in the folder of the object store, not in s3://"):
        await open_store(files, KEY, FakeClock(), place=other.place)
    assert other.keys() == []


async def test_a_place_may_be_changed_while_it_has_no_bodies(behind: Behind, tmp_path: Path) -> None:
    async with opened(tmp_path, behind) as store:
        await put(store, await make_bucket(store), "small", b"inline")
    other = behind.another()
    async with opened(tmp_path, other) as store:
        await put(store, await make_bucket(store), "k", LARGE)
        await store.delete((await make_bucket(store)).id, "k")
        await collect(store.engine)
    store = await open_store(tmp_path / "store", KEY, FakeClock())
    assert await get(store, await make_bucket(store), "small") == b"inline"
    await store.close()
    assert behind.keys() == [] and other.keys() == ["owner"]


async def test_blobs_of_another_store_are_not_touched(behind: Behind, tmp_path: Path) -> None:
    async with opened(tmp_path, behind) as store:
        await put(store, await make_bucket(store), "k", LARGE)
    pieces = behind.pieces()
    async with opened(tmp_path / "second", behind) as second:
        with pytest.raises(BlobsAway):
            await sweep_orphans(second.engine, datetime.now(UTC) + timedelta(days=2))
        with pytest.raises(StoreBusy):
            await put(second, await make_bucket(second), "k", LARGE)
        assert "another store" in blobs_of(second).attempts.problem
    client: Any = behind.engine.client()
    client.delete_object(Bucket=behind.place.bucket, Key=f"{behind.place.prefix}owner")
    for home, why in ((tmp_path, "was emptied"), (tmp_path / "third", "is not empty")):
        async with opened(home, behind) as store:
            with pytest.raises(BlobsAway):
                await names(store.engine.blobs)
            assert why in blobs_of(store).attempts.problem
    assert behind.keys() == pieces


async def test_a_replaced_key_is_read_again(behind: Behind, tmp_path: Path) -> None:
    async with opened(tmp_path, behind) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "k", LARGE)
        file = behind.place.credentials_file
        right = file.read_text()
        file.write_text(right.replace("the-secret", "another-secret"))
        behind.proxy.faults = [("GET", "denied")]
        for _ in range(2):  # the first reads the file, which has a wrong key now
            with pytest.raises(StoreBusy):
                await get(store, bucket, "k")
        file.write_text(right)
        with pytest.raises(StoreBusy):
            await get(store, bucket, "k")
        assert await get(store, bucket, "k") == LARGE


async def test_a_killed_put_leaves_an_orphan_which_is_removed(behind: Behind, tmp_path: Path) -> None:
    file, place = behind.place.credentials_file, behind.place
    arguments = [str(tmp_path), place.name, place.endpoint, str(file)]
    command = [sys.executable, "-m", "tests.fast.object_store.killed_put", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"pieces are stored\n"
        process.send_signal(signal.SIGKILL)
    assert len(behind.pieces()) >= 2
    async with opened(tmp_path, behind) as store:
        bucket = await make_bucket(store)
        assert (await store.list_objects(bucket.id)).objects == ()
        assert await sweep_orphans(store.engine, datetime.now(UTC) - timedelta(days=1)) == 0
        assert await sweep_orphans(store.engine, datetime.now(UTC) + timedelta(minutes=1)) == 1
    assert behind.pieces() == []


@pytest.mark.parametrize(
    "url",
    (
        "http://b/p",
        "s3://",
        "s3://b",
        "s3://bucket/../other",
        "s3://bucket//p",
        "s3://Bucket",
        "s3://bu cket",
    ),
)
def test_what_is_no_place(url: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a place"):
        s3_place(url, "http://127.0.0.1:1", REGION, tmp_path)


def test_a_key_file_is_private_and_is_not_quoted(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.touch(mode=0o600)
    for content in ("aws_secret_access_key = hidden", "[default\nhidden", "[default]\nhidden", "\0hidden"):
        file.write_text(content)
        with pytest.raises(ValueError, match="needs a section") as raised:
            read_key(file)
        assert "hidden" not in str(raised.value)
    file.chmod(0o640)
    with pytest.raises(ValueError, match="open to other users"):
        read_key(file)
    with pytest.raises(ValueError, match="is not a file"):
        read_key(tmp_path)


async def test_clients_are_told_to_slow_down(behind: Behind, tmp_path: Path) -> None:
    """The S3 front on top of it: whole objects, or an error that clients repeat."""
    home = tmp_path / "front"
    with serving(home, place=behind.place) as front:
        client: Any = front.client()
        bucket = front.make_bucket()
        client.put_object(Bucket=bucket, Key="k", Body=LARGE)
        found = client.get_object(Bucket=bucket, Key="k", Range="bytes=70000-2000000")
        assert found["Body"].read() == LARGE[70_000:2_000_001]
        behind.proxy.is_down = True
        for call, more in ((client.put_object, {"Body": LARGE}), (client.get_object, {})):
            with pytest.raises(client.exceptions.ClientError, match="SlowDown") as raised:
                call(Bucket=bucket, Key="k", **more)
            headers = raised.value.response["ResponseMetadata"]["HTTPHeaders"]
            assert headers["retry-after"] == "5"
        behind.proxy.is_down = False
        assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == LARGE
        command = [sys.executable, "-m", "neocloud.object_gateway.verify", "--home", str(home)]
        (home / "objects" / "store.key").write_text(KEY.hex())
        (home / "objects" / "store.key").chmod(0o600)
        ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
        assert ran.returncode == 0 and f'"bytes": {len(LARGE)}' in ran.stdout, ran.stderr
