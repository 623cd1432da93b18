# pyright: reportMissingTypeStubs=false
"""Files of projects that have a file bucket: each is the object `openai-files/<id>` of it.

Each request is signed with a key for this one object and one use, which the control plane issues. Anyone who
may write to the bucket can change or remove the object, so it is read only while it has the ETag that it got
when it was written, and a batch takes no other bytes than those.
"""

import asyncio
import errno
import logging
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any, Protocol, TypeVar

from neocloud.core.clock import SystemClock
from neocloud.core.loops import every
from neocloud.core.s3_calls import S3, Answer
from neocloud.data_plane.control_plane_client import ControlPlaneUnavailable
from neocloud.messages.neocloud.inference.v1 import (
    IssueFileKeyRequest,
    IssueFileKeyResponse,
    ProjectFileBucket,
)
from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.control_plane import NoFileBucket
from neocloud.model_gateway.openai_files.files import COPY_BYTES, Draft, FileStore, StoredFile

logger = logging.getLogger(__name__)
MOST_THREADS = 16
MOST_WRITES = 4
"""Objects that are written at a time; each holds a few parts of 16 MiB in memory."""
WRITE_ATTEMPTS = 3
SETTLE_SECONDS = 300.0
IN_GATEWAY = ("fine-tune", "fine-tune-results")
"""Purposes of files that stay in the gateway's own folder: training reads them from there."""
RANGE = re.compile(r"bytes=[0-9]{0,19}-[0-9]{0,19}")
READ, WRITE, DELETE = IssueFileKeyRequest.READ, IssueFileKeyRequest.WRITE, IssueFileKeyRequest.DELETE
Result = TypeVar("Result")


class Problem(StrEnum):
    MISSING = "file_content_missing"
    CHANGED = "file_content_changed"
    FORBIDDEN = "file_bucket_forbidden"
    REMOVED = "file_bucket_removed"
    FULL = "insufficient_quota"
    AWAY = "file_bucket_unavailable"


@dataclass
class BucketError(OpenAiError):
    problem: Problem = Problem.AWAY

    @property
    def is_passing(self) -> bool:
        """Return whether another try may succeed without anybody's doing."""
        return self.problem is Problem.AWAY


class FileKeys(Protocol):
    async def issue_file_key(self, request: IssueFileKeyRequest) -> IssueFileKeyResponse:
        """Return a key for the object of one file. Raises ControlPlaneUnavailable, NoFileBucket."""
        ...


@dataclass(frozen=True)
class ObjectContent:
    """The bytes of an object, or a range of them, as they arrive."""

    chunks: Generator[bytes]
    size: int
    content_range: str
    """"": the chunks are the whole object."""


async def ignore_deletion(file_id: str) -> None:
    return


class BucketFiles:
    def __init__(
        self, store: FileStore, keys: FileKeys, buckets: Callable[[], Iterable[ProjectFileBucket]]
    ) -> None:
        self._store = store
        self._keys = keys
        self._buckets = buckets
        self._threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="bucket-files")
        self._writes = asyncio.Semaphore(MOST_WRITES)
        self._busy = set[str]()
        """Files whose object is being written, or removed because it has no row."""
        self.deleted: Callable[[str], Awaitable[None]] = ignore_deletion
        """Called with the id of each file that has expired."""

    def bucket_of(self, project_id: str, purpose: str) -> ProjectFileBucket | None:
        """Return the bucket for a new file; None: it goes to the gateway's own folder."""
        if purpose in IN_GATEWAY:
            return None
        return next((each for each in self._buckets() if each.project_id == project_id), None)

    async def keep(self, draft: Draft, name: str, purpose: str, bucket: ProjectFileBucket) -> StoredFile:
        """Turn a draft into a file in a bucket. Raises BucketError."""
        return await self._put(_in(bucket, draft.described(name, purpose)), draft.path)

    async def add(
        self,
        project_id: str,
        path: Path,
        purpose: str,
        name: str,
        file_id: str,
        bucket: ProjectFileBucket,
        expires_seconds: int = 0,
    ) -> str:
        """Copy a local file to a bucket. Does nothing where `file_id` exists. Raises BucketError."""
        if not await asyncio.to_thread(self._store.find, file_id):
            size, digest = await asyncio.to_thread(_described, path)
            now = self._store.now()
            expires_at = now + expires_seconds if expires_seconds else 0
            file = StoredFile(file_id, project_id, name, purpose, size, digest, now, expires_at=expires_at)
            await self._put(_in(bucket, file), path)
        return file_id

    async def _put(self, file: StoredFile, path: Path) -> StoredFile:
        if file.id in self._busy:
            raise _error(Problem.AWAY, file, "an earlier try is being cleaned up")
        self._busy.add(file.id)
        try:
            # What a crash leaves in the bucket without a row is found by this note, and removed.
            await asyncio.to_thread(self._store.note_object, file)
            async with self._writes:
                etag = await self._ask(file, WRITE, partial(_put, file, path), WRITE_ATTEMPTS)
            file = replace(file, etag=etag)
            await asyncio.to_thread(self._store.insert, file)
        except BucketError as error:
            if not error.is_passing:
                await asyncio.to_thread(self._store.forget_object, file)
            raise
        finally:
            self._busy.discard(file.id)
        return file

    async def read(self, file: StoredFile, byte_range: str = "") -> ObjectContent:
        """Return the bytes of a file, or of one HTTP range. Raises BucketError."""
        wanted = {"Range": byte_range} if RANGE.fullmatch(byte_range) else {}
        return await self._ask(file, READ, partial(_open, file, wanted))

    async def fetch(self, file: StoredFile, target: Path, min_free_bytes: int) -> None:
        """Write the bytes that were uploaded to a path. Raises BucketError, also where the object has others;
        OSError, also before less than `min_free_bytes` of the disk are free."""
        await self._ask(file, READ, partial(_download, file, target, min_free_bytes))

    async def delete(self, file: StoredFile) -> None:
        """Remove the object. Another object that took its place stays, as does one in a bucket that is no
        longer the project's file bucket. Raises BucketError where it may not be removed, or not now."""
        try:
            await self._ask(file, DELETE, partial(_delete, file))
        except BucketError as error:
            if error.problem not in (Problem.MISSING, Problem.CHANGED, Problem.REMOVED):
                raise
            logger.info("The object of file %s was not removed: %s", file.id, error.problem)

    async def settle(self) -> None:
        """Remove objects of files without a row, which interrupted uploads left behind."""
        for file in await asyncio.to_thread(self._store.unsettled_objects):
            if file.id in self._busy:
                continue
            self._busy.add(file.id)
            try:
                await self.delete(file)
            except BucketError as error:
                if error.is_passing:
                    continue
                logger.warning(
                    "The object %s/%s of an upload stays: %s", file.bucket, file.key, error.message
                )
            finally:
                self._busy.discard(file.id)
            await asyncio.to_thread(self._store.forget_object, file)

    async def settle_periodically(self) -> None:
        async def round() -> None:
            await self.settle()
            await self.delete_expired()

        await every(SETTLE_SECONDS, round, "Uploads could not be settled", SystemClock())

    async def delete_expired(self) -> None:
        """Delete the files whose time has come. Those whose bucket does not answer are tried again later."""
        for file in await asyncio.to_thread(self._store.expired):
            try:
                if file.bucket_id:
                    await self.delete(file)
                await asyncio.to_thread(self._store.delete, file)
                await self.deleted(file.id)
            except (OpenAiError, OSError) as error:
                logger.warning("The expired file %s could not be deleted: %s", file.id, error)

    async def _ask(
        self,
        file: StoredFile,
        use: "IssueFileKeyRequest.Use",
        ask: Callable[[S3], Result],
        attempts: int = 1,
    ) -> Result:
        """Run a request to S3 in a thread. Raises BucketError."""
        request = IssueFileKeyRequest(
            project_id=file.project_id, bucket_id=file.bucket_id, file_id=file.id, use=use
        )
        try:
            key = await self._keys.issue_file_key(request)
        except NoFileBucket as error:
            raise _error(Problem.REMOVED, file) from error
        except ControlPlaneUnavailable as error:
            raise _error(Problem.AWAY, file, error.reason) from error
        asking = partial(_answered, file, key, attempts, ask)
        return await asyncio.get_running_loop().run_in_executor(self._threads, asking)


def _in(bucket: ProjectFileBucket, file: StoredFile) -> StoredFile:
    return replace(file, bucket_id=bucket.bucket_id, bucket=bucket.bucket)


def _described(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        return path.stat().st_size, file_digest(file, "sha256").hexdigest()


_PROBLEMS = {
    "NoSuchKey": Problem.MISSING,
    "NoSuchBucket": Problem.REMOVED,
    "404": Problem.MISSING,
    "PreconditionFailed": Problem.CHANGED,
    "QuotaExceeded": Problem.FULL,
    "AccessDenied": Problem.FORBIDDEN,
    "InvalidAccessKeyId": Problem.FORBIDDEN,
}


def _answered(
    file: StoredFile, key: IssueFileKeyResponse, attempts: int, ask: Callable[[S3], Result]
) -> Result:
    """Raises BucketError for what S3 or the connection says."""
    from botocore.credentials import Credentials  # noqa: PLC0415  slow to load
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    from neocloud.client.s3 import s3_client  # noqa: PLC0415

    credentials = Credentials(key.aws_access_key_id, key.secret)
    s3 = s3_client(credentials, f"http://{key.endpoint}", key.region, attempts=attempts)
    try:
        return ask(s3)
    except ClientError as error:
        said = error.response.get("Error", {})
        code, message = str(said.get("Code", "")), str(said.get("Message", ""))
        if code == "InvalidRange":
            raise OpenAiError(416, "The range is not within the file.", code="invalid_range") from error
        raise _error(_PROBLEMS.get(code, Problem.AWAY), file, message or code) from error
    except (BotoCoreError, HTTPError) as error:
        raise _error(Problem.AWAY, file, str(error)) from error


def _put(file: StoredFile, path: Path, s3: S3) -> str:
    """Write the object and return its ETag."""
    from neocloud.client.s3_uploads import upload  # noqa: PLC0415  slow to load

    headers = {"ContentType": "application/octet-stream"}
    with path.open("rb") as stream:
        return upload(s3, stream, file.bucket, file.key, headers).etag


def _get(file: StoredFile, s3: S3, wanted: Mapping[str, str]) -> Answer:
    """Return the answer of S3, if its object is what was uploaded, by ETag and size."""
    answer = s3.get_object(
        Bucket=file.bucket, Key=file.key, IfMatch=file.etag, ChecksumMode="ENABLED", **wanted
    )
    if not wanted and answer["ContentLength"] != file.bytes:
        answer["Body"].close()
        raise _error(Problem.CHANGED, file)
    return answer


def _open(file: StoredFile, wanted: Mapping[str, str], s3: S3) -> ObjectContent:
    answer = _get(file, s3, wanted)
    return ObjectContent(_chunks(answer["Body"]), answer["ContentLength"], answer.get("ContentRange", ""))


def _chunks(body: Any) -> Generator[bytes]:
    with closing(body):
        yield from body.iter_chunks(COPY_BYTES)


def _download(file: StoredFile, target: Path, min_free_bytes: int, s3: S3) -> None:
    """The ETag says little where others may write: the digest of the upload decides."""
    if shutil.disk_usage(target.parent).free - file.bytes < min_free_bytes:
        raise OSError(errno.ENOSPC, "the disk has reached the space that is to stay free")
    written, digest = 0, sha256()
    unfinished = target.with_name(f"{target.name}.partial")
    with unfinished.open("wb") as copy, closing(_chunks(_get(file, s3, {})["Body"])) as chunks:
        for chunk in chunks:
            written += len(chunk)
            if written > file.bytes:
                break
            copy.write(chunk)
            digest.update(chunk)
        copy.flush()
        os.fsync(copy.fileno())
    if written != file.bytes or digest.hexdigest() != file.sha256:
        unfinished.unlink()
        raise _error(Problem.CHANGED, file)
    unfinished.rename(target)


def _delete(file: StoredFile, s3: S3) -> None:
    condition = {"IfMatch": file.etag} if file.etag else {}
    s3.delete_object(Bucket=file.bucket, Key=file.key, **condition)


_NO_RETRY = {"x-should-retry": "false"}
_AGAIN = {"Retry-After": "5"}
_ERRORS: Mapping[Problem, tuple[int, str, str, Mapping[str, str]]] = {
    Problem.MISSING: (
        404,
        "invalid_request_error",
        "Its object {url} was removed from the bucket. Delete the file and upload it again.",
        {},
    ),
    Problem.CHANGED: (
        409,
        "invalid_request_error",
        "Its object {url} is not what was uploaded: something else was written there. Delete the file, which"
        " leaves that object, and upload it again.",
        _NO_RETRY,
    ),
    Problem.FORBIDDEN: (
        403,
        "permission_error",
        "The account that chose the bucket {bucket} for files may not use {url} any more. Restore its right,"
        " or choose the bucket again with another account (`neo inference file-bucket`).",
        {},
    ),
    Problem.REMOVED: (
        409,
        "invalid_request_error",
        "The bucket {bucket} is not the file bucket of the project any more, or was deleted. Choose it again"
        " (`neo inference file-bucket`), or choose another one for new files.",
        _NO_RETRY,
    ),
    Problem.FULL: (
        429,
        "insufficient_quota",
        "The bucket {bucket} is full: {reason}. Delete objects, or raise its limit.",
        _NO_RETRY,
    ),
    Problem.AWAY: (
        503,
        "service_unavailable_error",
        "The bucket {bucket} cannot be used at the moment: {reason}. Try again.",
        _AGAIN,
    ),
}


def _error(problem: Problem, file: StoredFile, reason: str = "") -> BucketError:
    status, kind, text, headers = _ERRORS[problem]
    url = f"s3://{file.bucket}/{file.key}"
    message = text.format(url=url, bucket=file.bucket, reason=reason.rstrip(".") or "it does not answer")
    return BucketError(status, message, kind, problem.value, "file_id", headers, problem)
