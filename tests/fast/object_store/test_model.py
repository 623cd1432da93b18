"""Any sequence of operations leaves the store as it leaves a dictionary."""

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, settings, strategies
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from neocloud.object_store.metadata import uploads
from neocloud.object_store.metadata.location import is_there
from neocloud.object_store.types import (
    NULL_VERSION,
    Attributes,
    ByteRange,
    ChecksumAlgorithm,
    CompletedPart,
    Source,
    Upload,
    Versioning,
)
from neocloud.testing.waiting import FakeClock
from tests.fast.object_store.stores import MEMORY, check_sums, desired, empty, get, opened, put, put_part

KEYS = ("a", "a/", "a/b", "a/c/d", "a0", "b", "ü", "\U0001f600", "\uffee")
"""The last two are ordered one way by bytes and code points, and the other way by UTF-16."""
keys = strategies.sampled_from(KEYS)
bodies = strategies.builds(
    lambda seed, size: bytes([seed]) * size,
    strategies.integers(0, 255),
    strategies.sampled_from((0, 1, 1000, 20_000, 70_000)),
)


@dataclass
class ModelVersion:
    id: str
    body: bytes | None
    """None: a delete marker."""


@dataclass
class ModelUpload:
    upload: Upload
    parts: dict[int, bytes] = field(default_factory=dict)


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(dir=MEMORY))
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        self.generation = 0
        self.versioning = Versioning.DISABLED
        self.model: dict[str, list[ModelVersion]] = {}
        """Versions by key, the newest first."""
        self.uploads: list[ModelUpload] = []

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    @initialize()
    def open(self) -> None:
        self.store = self.run(self.stack.enter_async_context(opened(self.home, FakeClock())))
        self._apply(Versioning.DISABLED)

    def _apply(self, versioning: Versioning) -> None:
        self.generation += 1
        self.versioning = versioning
        bucket = desired(generation=self.generation, versioning=versioning)
        self.bucket = self.run(self.store.apply_bucket(bucket))

    def _add(self, key: str, version_id: str, body: bytes | None) -> None:
        found = self.model.setdefault(key, [])
        if self.versioning is not Versioning.ENABLED:
            assert version_id == NULL_VERSION
            found[:] = [each for each in found if each.id != NULL_VERSION]
        found.insert(0, ModelVersion(version_id, body))

    def _latest(self, key: str) -> bytes | None:
        found = self.model.get(key)
        return found[0].body if found else None

    @rule(key=keys, body=bodies)
    def put(self, key: str, body: bytes) -> None:
        version = self.run(put(self.store, self.bucket, key, body))
        self._add(key, version.version_id, body)

    @rule(key=keys)
    def delete(self, key: str) -> None:
        deleted = self.run(self.store.delete(self.bucket.id, key))
        if self.versioning is Versioning.DISABLED:
            self.model.pop(key, None)
        else:
            self._add(key, deleted.version_id, None)

    @rule(key=keys, data=strategies.data())
    def delete_version(self, key: str, data: strategies.DataObject) -> None:
        found = self.model.get(key)
        if found:
            version = data.draw(strategies.sampled_from(found))
            deleted = self.run(self.store.delete(self.bucket.id, key, version.id))
            assert deleted.is_delete_marker == (version.body is None)
            found.remove(version)

    @rule(source=keys, key=keys)
    def copy(self, source: str, key: str) -> None:
        body = self._latest(source)
        if body is not None:
            version = self.run(self.store.copy(Source(self.bucket.id, source), self.bucket.id, key))
            self._add(key, version.version_id, body)

    @rule(versioning=strategies.sampled_from((Versioning.ENABLED, Versioning.SUSPENDED)))
    def set_versioning(self, versioning: Versioning) -> None:
        self._apply(versioning)

    @rule(key=keys)
    def create_upload(self, key: str) -> None:
        if len(self.uploads) < 3:
            upload = self.run(self.store.create_upload(self.bucket.id, key, Attributes()))
            self.uploads.append(ModelUpload(upload))

    @precondition(lambda self: self.uploads)
    @rule(data=strategies.data(), number=strategies.integers(1, 3), body=bodies)
    def put_part(self, data: strategies.DataObject, number: int, body: bytes) -> None:
        each = data.draw(strategies.sampled_from(self.uploads))
        upload = each.upload
        self.run(put_part(self.store, self.bucket, upload.key, upload.upload_id, number, body))
        each.parts[number] = body

    @precondition(lambda self: self.uploads)
    @rule(data=strategies.data(), number=strategies.integers(1, 3), source=keys)
    def copy_part(self, data: strategies.DataObject, number: int, source: str) -> None:
        each = data.draw(strategies.sampled_from(self.uploads))
        body = self._latest(source)
        if not body:
            return
        first = data.draw(strategies.integers(0, len(body) - 1))
        last = data.draw(strategies.integers(first, len(body) - 1))
        whole = Source(self.bucket.id, source)
        upload = each.upload
        copied = self.store.copy_part(
            whole, self.bucket.id, upload.key, upload.upload_id, number, range=ByteRange(first, last)
        )
        self.run(copied)
        each.parts[number] = body[first : last + 1]

    @precondition(lambda self: self.uploads)
    @rule(data=strategies.data())
    def end_upload(self, data: strategies.DataObject) -> None:
        each = data.draw(strategies.sampled_from(self.uploads))
        self.uploads.remove(each)
        upload = each.upload
        page = self.run(self.store.list_parts(self.bucket.id, upload.key, upload.upload_id))
        assert [(part.number, part.size) for part in page.parts] == [
            (number, len(body)) for number, body in sorted(each.parts.items())
        ]
        chosen = (
            data.draw(strategies.lists(strategies.sampled_from(page.parts), unique=True))
            if page.parts
            else []
        )
        if not chosen:
            self.run(self.store.abort_upload(self.bucket.id, upload.key, upload.upload_id))
            return
        numbers = sorted(part.number for part in chosen)
        named = [CompletedPart(part.number, part.etag) for part in page.parts if part.number in numbers]
        with mock.patch.object(uploads, "MIN_PART_BYTES", 0):
            version = self.run(
                self.store.complete_upload(self.bucket.id, upload.key, upload.upload_id, named)
            )
        body = b"".join(each.parts[number] for number in numbers)
        assert version.checksum is not None
        assert version.checksum.algorithm is ChecksumAlgorithm.CRC64NVME
        self._add(upload.key, version.version_id, body)

    @rule()
    def restart(self) -> None:
        self.run(self.stack.aclose())
        self.store = self.run(self.stack.enter_async_context(opened(self.home, FakeClock())))

    @rule(
        prefix=strategies.sampled_from(("", "a", "a/", "b", "zz")),
        delimiter=strategies.sampled_from(("", "/", "a", "ü")),
        limit=strategies.integers(1, 4),
    )
    def list_objects(self, prefix: str, delimiter: str, limit: int) -> None:
        there = [key for key in self.model if self._latest(key) is not None]
        expected = grouped(there, prefix, delimiter)
        found: list[str] = []
        marker, is_truncated = "", True
        while is_truncated:
            page = self.run(
                self.store.list_objects(
                    self.bucket.id, prefix=prefix, delimiter=delimiter, start_after=marker, limit=limit
                )
            )
            entries = ordered([*(each.key for each in page.objects), *page.prefixes])
            assert len(entries) <= limit
            assert all(each.size == len(self._latest(each.key) or b"") for each in page.objects)
            found += entries
            marker, is_truncated = page.next_marker, page.is_truncated
        assert found == expected

    @rule(
        prefix=strategies.sampled_from(("", "a", "a/")),
        delimiter=strategies.sampled_from(("", "/")),
        limit=strategies.integers(1, 4),
    )
    def list_versions(self, prefix: str, delimiter: str, limit: int) -> None:
        named = [key for key, found in self.model.items() if found]
        expected: list[tuple[str, str]] = []
        for each in grouped(named, prefix, delimiter):
            is_prefix = delimiter and each.endswith(delimiter) and each != prefix
            expected += [(each, "")] if is_prefix else [(each, version.id) for version in self.model[each]]
        found: list[tuple[str, str]] = []
        key, version, is_truncated = "", "", True
        while is_truncated:
            page = self.run(
                self.store.list_versions(
                    self.bucket.id,
                    prefix=prefix,
                    delimiter=delimiter,
                    key_marker=key,
                    version_marker=version,
                    limit=limit,
                )
            )
            entries = [(each.key, each.version_id) for each in page.versions]
            entries += [(each, "") for each in page.prefixes]
            assert len(entries) <= limit
            found += sorted(entries, key=lambda entry: entry[0].encode())
            key, version, is_truncated = page.next_key_marker, page.next_version_marker, page.is_truncated
        assert found == expected

    @invariant()
    def the_sums_are_right(self) -> None:
        if is_there(self.home):
            check_sums(self.home)

    def teardown(self) -> None:
        try:
            for key, found in self.model.items():
                for version in found:
                    if version.body is not None:
                        read = self.run(get(self.store, self.bucket, key, version.id))
                        assert read == version.body
                if found and found[0].body is not None:
                    assert self.run(get(self.store, self.bucket, key)) == found[0].body
        finally:
            self.run(self.stack.aclose())
            self.loop.close()
            shutil.rmtree(self.home)


def ordered(names: list[str]) -> list[str]:
    return sorted(names, key=str.encode)


def grouped(names: list[str], prefix: str, delimiter: str) -> list[str]:
    """Return keys and common prefixes, once each, by the definition of S3."""
    found: set[str] = set()
    for name in names:
        if name.startswith(prefix):
            rest = name[len(prefix) :]
            cut = rest.find(delimiter) if delimiter else -1
            found.add(name if cut < 0 else prefix + rest[: cut + len(delimiter)])
    return ordered(list(found))


SETTINGS = settings(
    max_examples=12,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def test_store() -> None:
    run_state_machine_as_test(StoreMachine, settings=SETTINGS)


def test_store_in_postgresql(postgresql_metadata: Path) -> None:
    class Machine(StoreMachine):
        def __init__(self) -> None:
            empty(postgresql_metadata)
            super().__init__()

    run_state_machine_as_test(Machine, settings=settings(SETTINGS, max_examples=3))
