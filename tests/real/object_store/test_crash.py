"""A process that is killed at any write step has lost nothing that it answered, and left nothing half."""

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from neocloud.object_store.garbage import collect, sweep_orphans
from neocloud.object_store.store import ObjectStore
from neocloud.object_store.types import Bucket, Versioning
from tests import ROOT
from tests.fast.object_store import stores
from tests.fast.object_store.stores import MEMORY, check_sums, desired, files, get, opened, read
from tests.iterations import SHARE, iterations
from tests.real.object_store.crash_worker import DATABASE


@pytest.fixture
def base() -> Iterator[Path]:
    with TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


@pytest.mark.repeated
@pytest.mark.parametrize(("versioning", "stride"), ((Versioning.ENABLED, 1), (Versioning.DISABLED, 3)))
async def test_killed_at_every_step(base: Path, versioning: Versioning, stride: int) -> None:
    stride *= SHARE // iterations(SHARE)
    deaths, runs = await killed_and_checked(base, versioning, stride)
    steps = {"open", "write", "fdatasync", "sync_folder", "unlink", "COMMIT", "answer"}
    if stride == 1:
        assert steps | {"DELETE FROM garbage", "INSERT INTO version", "INSERT INTO garbage"} <= deaths
    assert runs > 60 / stride


async def test_killed_with_metadata_in_postgresql(base: Path, postgresql_metadata: Path) -> None:
    deaths, runs = await killed_and_checked(base, Versioning.ENABLED, 5, str(postgresql_metadata))
    assert {"COMMIT", "answer"} <= deaths
    assert runs > 12


async def killed_and_checked(
    base: Path, versioning: Versioning, stride: int, *address: str
) -> tuple[set[str], int]:
    """Return before what processes died, and how many there were."""
    command = [
        sys.executable,
        "-m",
        "tests.real.object_store.crash_worker",
        str(base),
        versioning,
        str(stride),
    ]
    subprocess.run([*command, *address], check=True, cwd=ROOT, timeout=300)
    deaths: set[str] = set()
    folders = sorted(base.iterdir(), key=lambda path: int(path.name))
    for folder in folders:
        lines = [json.loads(line) for line in (folder / "answers").read_text().splitlines()]
        if address:
            stores.metadata = folder / DATABASE
        deaths |= {line["died"].split("(")[0].strip() for line in lines if "died" in line}
        async with opened(folder) as store:
            bucket = await store.apply_bucket(desired(versioning=versioning))
            await check(store, bucket, lines, versioning)
            await collect(store.engine)
            await sweep_orphans(store.engine, datetime.now(UTC) + timedelta(days=1))
        check_sums(folder)
        named = {name for (name,) in read(folder, "SELECT blob FROM content WHERE blob IS NOT NULL")}
        assert {path.name for path in files(folder)} == named, folder.name
    return deaths, len(folders)


async def check(
    store: ObjectStore, bucket: Bucket, lines: list[dict[str, Any]], versioning: Versioning
) -> None:
    """Check that what was answered is there, and that what was only begun is there whole or not at all."""
    answered = [line["answered"] for line in lines if "answered" in line]
    begun = [line["begun"] for line in lines if "begun" in line]
    unanswered = [each for each in begun if each not in [_operation(one) for one in answered]]
    possible: dict[str, list[bytes | None]] = {}
    for each in answered:
        key = each.get("put") or each["delete"]
        if each.get("of") is None:
            possible[key] = [_body(each)]
    for each in unanswered:
        key = each.get("put") or each["delete"]
        if each.get("of") is None:
            possible.setdefault(key, [None]).append(_body(each))
    found = {each.key: each for each in (await store.list_objects(bucket.id)).objects}
    assert found.keys() <= possible.keys()
    for key, bodies in possible.items():
        body = await get(store, bucket, key) if key in found else None
        assert body in bodies, key
    if versioning is Versioning.ENABLED:
        await check_versions(store, bucket, answered, unanswered)


async def check_versions(
    store: ObjectStore, bucket: Bucket, answered: list[dict[str, Any]], unanswered: list[dict[str, Any]]
) -> None:
    removed = {each["of"] for each in [*answered, *unanswered] if each.get("of")}
    for each in answered:
        if "put" in each and each["version"] not in removed:
            assert await get(store, bucket, each["put"], each["version"]) == _body(each)


def _operation(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "version"}


def _body(operation: dict[str, Any]) -> bytes | None:
    if "delete" in operation:
        return None
    seeds = operation["seed"]
    if isinstance(seeds, int):
        return bytes([seeds]) * operation["size"]
    return b"".join(bytes([seed]) * (operation["size"] // len(seeds)) for seed in seeds)
