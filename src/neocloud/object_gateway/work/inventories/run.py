"""One run of an inventory: data files one after the other, then the manifest, then its checksum.

A report is there once its manifest is, as with S3 Inventory: files that no manifest names are no report.
Memory holds one page of versions (for Parquet, one row group) and one MiB of a file, however many objects
the bucket has.
"""

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import md5

from neocloud.core.clock import Clock
from neocloud.messages.nebius.storage.v1 import InventorySpec
from neocloud.messages.neocloud.storage.v1 import GatewayInventory
from neocloud.object_gateway.access import ControlPlane
from neocloud.object_gateway.work.inventories.columns import columns_of, values
from neocloud.object_gateway.work.inventories.formats import CsvGzip, Format
from neocloud.object_gateway.work.inventories.listing import PAGE, Position, Selection, page
from neocloud.object_gateway.work.inventories.records import FileRow, InventoryRow, Records
from neocloud.object_store.bodies.protocols import BodyWriter
from neocloud.object_store.errors import ConditionFailed, NoSuchBucket, NoSuchKey, ObjectStoreError
from neocloud.object_store.metadata.transaction import to_time
from neocloud.object_store.store import ObjectStore
from neocloud.object_store.types import Attributes, Bucket, ObjectVersion, WriteConditions

ROWS_PER_FILE = 200_000
PAUSE_SECONDS = 0.005
"""Between pages, so that requests of clients come first."""
LIST, READ, WRITE = "storage.objects.list", "storage.objects.get", "storage.objects.create"
_TAGS = InventorySpec.OptionalField.Value("TAGS")
_PARQUET = InventorySpec.OutputFormat.Value("PARQUET_SNAPPY")
_NEW = WriteConditions(if_none_match="*")
_MANIFEST_VERSION = "2016-11-30"
"""The version of the format of S3 Inventory."""


class InventoryFailed(Exception):
    """Why a run ended without a report, as InventoryStatus.Error names it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class InventoryRun:
    def __init__(
        self,
        desired: GatewayInventory,
        store: ObjectStore,
        control_plane: ControlPlane,
        records: Records,
        clock: Clock,
    ) -> None:
        self._desired, self._spec, self._id = desired, desired.spec, desired.id
        self._store, self._control_plane = store, control_plane
        self._records, self._clock = records, clock

    async def write(self) -> None:
        """Write the report, from where a killed process stopped.
        Raises InventoryFailed, ObjectStoreError, ControlPlaneUnavailable."""
        try:
            await self._write()
        except NoSuchBucket:
            self._require_buckets()  # one of them went meanwhile
            raise

    async def _write(self) -> None:
        settings = self._settings()
        before = self._records.find(self._id)
        if before is not None and before.run and before.settings != settings:
            await self.give_up()
        row = await self._records.begin(self._id, settings)
        while not row.is_listed:
            await self._require_rights()
            row = await self._write_file(row)
        await self._require_rights()
        await self._write_manifest(row)
        await self._records.succeed(row)

    async def give_up(self) -> None:
        """Delete the files of the run in progress, which no manifest names, and forget it."""
        for file in self._records.files(self._id):
            with suppress(ObjectStoreError):
                await self._store.delete(
                    file.bucket_id,
                    file.key.decode(),
                    file.version_id,
                    conditions=WriteConditions(if_match=file.md5),
                    request=None,
                )
        await self._records.give_up(self._id)

    def _settings(self) -> bytes:
        """Return what decides how a report looks."""
        spec = InventorySpec()
        spec.CopyFrom(self._spec)
        spec.ClearField("enabled")
        spec.ClearField("schedule")
        return self._desired.source_bucket_id.encode() + b"\0" + spec.SerializeToString(deterministic=True)

    def _bucket(self, bucket_id: str, code: str, word: str) -> Bucket:
        try:
            return self._store.engine.bucket(bucket_id).bucket
        except NoSuchBucket as error:
            raise InventoryFailed(code, f"The {word} bucket does not exist.") from error

    def _source(self) -> Bucket:
        return self._bucket(self._desired.source_bucket_id, "INVALID_INTENT", "source")

    def _destination(self) -> Bucket:
        return self._bucket(self._spec.destination_bucket_id, "DESTINATION_BUCKET_NOT_FOUND", "destination")

    def _require_buckets(self) -> tuple[Bucket, Bucket]:
        return self._source(), self._destination()

    async def _require_rights(self) -> None:
        """Raise InventoryFailed unless the account may list the source and write into the destination."""
        source, destination = self._require_buckets()
        wanted = {LIST, READ} if _TAGS in self._spec.optional_fields else {LIST}
        for bucket, permissions in ((source, wanted), (destination, {WRITE})):
            held = await self._control_plane.authorize(self._desired.subject_id, bucket.id)
            if not permissions <= held:
                lacking = ", ".join(sorted(permissions - held))
                raise InventoryFailed("PERMISSION_DENIED", f"The account lacks {lacking} on {bucket.name}.")

    async def _write_file(self, row: InventoryRow) -> InventoryRow:
        """Write the next file, and remember it."""
        number = self._records.next_number(self._id)
        form = await self._store.engine.in_thread(lambda: _format(self._spec))
        key = f"{self._folder()}data/{row.run}-{number:05d}.{form.suffix}"
        await self._remove_leftover(key)
        destination = self._destination()
        async with await self._store.open_write(destination.id, None, key=key) as writer:
            position, count, is_listed = await self._list(row.position, form, writer)
            if not count:
                return await self._records.advance(row, position, None, is_listed=True)
            await writer.write(await self._store.engine.in_thread(form.finish))
            stored = await _committed(
                lambda: writer.commit(key, _attributes(form.content_type), conditions=_NEW)
            )
        file = FileRow(
            self._id, number, destination.id, key.encode(), stored.version_id, stored.size, stored.etag
        )
        return await self._records.advance(row, position, file, is_listed=is_listed)

    async def _list(self, position: Position, form: Format, writer: BodyWriter) -> tuple[Position, int, bool]:
        """Write versions into a file until it is full; return the last one, how many, and whether it is the
        last of all."""
        engine, count = self._store.engine, 0
        selection = Selection(self._spec.source_prefix.encode(), self._spec.noncurrent_versions)
        columns = columns_of(self._spec)
        while (limit := min(PAGE, ROWS_PER_FILE - count)) > 0:
            bucket = engine.bucket(self._desired.source_bucket_id)
            found = page(engine, bucket, selection, position, limit)
            if found:
                lines = await engine.in_thread(
                    lambda: form.add(values(columns, bucket, found, engine.database.now_ms()))  # noqa: B023
                )
                await writer.write(lines)
                position, count = Position(found[-1].key, found[-1].seq), count + len(found)
            if len(found) < limit:
                return position, count, True
            await self._clock.sleep(PAUSE_SECONDS)
        return position, count, False

    async def _remove_leftover(self, key: str) -> None:
        """Remove the file that a process stored and was killed before it remembered it."""
        destination = self._destination()
        with suppress(NoSuchKey):
            found = await self._store.find_version(destination.id, key)
            await self._store.delete(destination.id, key, found.version_id, request=None)

    async def _write_manifest(self, row: InventoryRow) -> None:
        started = to_time(row.start_ms)
        form = await self._store.engine.in_thread(lambda: _format(self._spec))
        content = {
            "sourceBucket": self._source().name,
            "destinationBucket": f"arn:aws:s3:::{self._destination().name}",
            "version": _MANIFEST_VERSION,
            "creationTimestamp": str(row.start_ms),
            "fileFormat": form.name,
            "fileSchema": form.schema,
            "files": [
                {"key": file.key.decode(), "size": file.size, "MD5checksum": file.md5}
                for file in self._records.files(self._id)
            ],
        }
        body = json.dumps(content, indent=1).encode()
        folder = f"{self._folder()}{started:%Y-%m-%dT%H-%MZ}/"
        await self._put(f"{folder}manifest.json", body, "application/json")
        digest = md5(body, usedforsecurity=False).hexdigest().encode()
        await self._put(f"{folder}manifest.checksum", digest, "text/plain")

    async def _put(self, key: str, body: bytes, content_type: str) -> None:
        """Store a small object; one with this content may be there from before a crash."""
        destination = self._destination()
        async with await self._store.open_write(destination.id, len(body), key=key) as writer:
            await writer.write(body)
            with suppress(_Exists):
                await _committed(lambda: writer.commit(key, _attributes(content_type), conditions=_NEW))
                return
        found = await self._store.find_version(destination.id, key)
        if found.etag != md5(body, usedforsecurity=False).hexdigest():
            raise InventoryFailed("INVALID_INTENT", f"There is another object {key!r} already.")

    def _folder(self) -> str:
        """Return the prefix of all reports of the inventory, with its slash."""
        prefix = self._spec.destination_prefix
        base = f"{prefix}/" if prefix and not prefix.endswith("/") else prefix
        return f"{base}{self._source().name}/{self._id}/"


class _Exists(Exception):
    pass


async def _committed(commit: Callable[[], Awaitable[ObjectVersion]]) -> ObjectVersion:
    """Raises _Exists where there is an object of this key."""
    try:
        return await commit()
    except ConditionFailed as error:
        raise _Exists from error


def _format(spec: InventorySpec) -> Format:
    columns = columns_of(spec)
    if spec.output_format == _PARQUET:
        # Arrow takes 52 MiB, which gateways without such an inventory do without.
        from neocloud.object_gateway.work.inventories.parquet import ParquetSnappy  # noqa: PLC0415

        return ParquetSnappy(columns)
    return CsvGzip(columns)


def _attributes(content_type: str) -> Attributes:
    return Attributes(headers={"content-type": content_type})
