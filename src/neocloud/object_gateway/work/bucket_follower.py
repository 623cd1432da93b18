"""Follows the buckets of the control plane: applies them to the store, and reports them as they are."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from neocloud.core.cleanup import undo_on_error
from neocloud.core.clock import Clock
from neocloud.core.loops import LoopErrors, every
from neocloud.data_plane.control_plane_client import AwayLog, ControlPlaneUnavailable
from neocloud.data_plane.long_poll import AWAY_SECONDS, LongPoll
from neocloud.messages.neocloud.storage.v1 import (
    BucketReport,
    GatewayBucket,
    ListGatewayBucketsResponse,
    ReportBucketsRequest,
)
from neocloud.object_gateway.access import ControlPlane
from neocloud.object_gateway.work import bucket_messages
from neocloud.object_gateway.work.scrub import ScrubResult
from neocloud.object_store.blobs.s3.driver import S3Blobs
from neocloud.object_store.errors import NoSuchBucket, ObjectLocked, ObjectStoreError, StoreUnavailable
from neocloud.object_store.store import ObjectStore
from neocloud.object_store.types import BucketKind, BucketState

WAIT_SECONDS = 20
REPORT_SECONDS = 10.0
LOCKED_SECONDS = 60.0
"""Between attempts to purge a bucket whose versions are protected."""
logger = logging.getLogger(__name__)


class AccessListener(Protocol):
    def heard(self) -> None:
        """The control plane has just answered what changed."""
        ...

    def forget(self) -> None:
        """Keys, groups or rights changed."""
        ...


@dataclass(frozen=True)
class Whereabouts:
    """The gateway's report about itself."""

    endpoint: str
    """Host and port at which it serves S3."""
    tls_port: int = 0
    """The port for other machines; 0: it does not serve them."""
    scrub: Callable[[], ScrubResult | None] = lambda: None
    """The last scrub."""


class BucketFollower:
    def __init__(
        self,
        store: ObjectStore,
        control_plane: ControlPlane,
        clock: Clock,
        access: AccessListener,
        own: Whereabouts,
    ) -> None:
        """`access` is called when keys, groups or rights changed; `own` is the report about the gateway."""
        self._store = store
        self._control_plane = control_plane
        self._clock = clock
        self._access = access
        self._own = own
        self._known = ListGatewayBucketsResponse()
        self._problems: dict[str, str] = {}
        self._purging: dict[str, asyncio.Task[None]] = {}
        self._poll = LongPoll(
            *(clock, "Buckets", self._list, self._take),
            away=AwayLog(logger, "known buckets are served on"),
            expected=(StoreUnavailable,),
        )
        self._report_away = AwayLog(logger, "buckets are not reported")
        self._report_errors = LoopErrors("Buckets could not be reported", (StoreUnavailable,))
        self._questions = itertools.count(1)
        self._answered = 0
        """The newest question whose answer was applied."""
        self._applying = asyncio.Lock()

    async def run(self) -> None:
        """Follow and report until cancelled."""
        reporting = every(
            *(REPORT_SECONDS, self._try_report, "Buckets could not be reported", self._clock),
            is_first_now=False,
        )
        tasks = [asyncio.create_task(self._poll.run()), asyncio.create_task(reporting)]
        try:
            await asyncio.gather(*tasks)
        finally:
            running = [*tasks, *self._purging.values()]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _list(self) -> tuple[int, ListGatewayBucketsResponse]:
        question = next(self._questions)
        answer = await self._control_plane.list_buckets(
            self._known.version, self._known.access_version, WAIT_SECONDS
        )
        self._access.heard()
        return question, answer

    async def _take(self, answer: tuple[int, ListGatewayBucketsResponse]) -> None:
        try:
            await self._apply_in_order(*answer)
        finally:
            await self._try_report()

    async def refresh(self) -> None:
        """Apply what the control plane has by now, for a caller who has just changed a bucket there and is to
        read what they wrote. Raises ControlPlaneUnavailable, StoreUnavailable."""
        question = next(self._questions)
        await self._apply_in_order(question, await self._control_plane.list_buckets("", "", 0))

    async def _apply_in_order(self, question: int, answer: ListGatewayBucketsResponse) -> None:
        """Apply an answer, unless that to a later question was: this one may be older. The follower asks
        again at once then, and gets what differs."""
        async with self._applying:
            if question < self._answered:
                return
            self._answered = question
            with undo_on_error(self._forget_known):
                await self.apply(answer)

    def _forget_known(self) -> None:
        """Let the next answer be applied whole."""
        self._known = ListGatewayBucketsResponse()

    async def apply(self, answer: ListGatewayBucketsResponse) -> None:
        """Apply the desired state of these buckets. A bucket that is not named stays as it is. Raises
        StoreUnavailable."""
        has_changed = answer.version != self._known.version
        if answer.access_version != self._known.access_version:
            self._access.forget()
        self._known = answer
        if has_changed:
            self._problems = {}
            for bucket in answer.buckets:
                await self._apply(bucket)
            self._access.forget()

    async def _apply(self, bucket: GatewayBucket) -> None:
        try:
            if bucket.mode != bucket_messages.PURGE:
                applied = await self._store.apply_bucket(bucket_messages.desired(bucket))
                if bucket.removed_artifacts and applied.generation == bucket.generation:
                    await self._store.delete_artifacts(bucket.id, bucket_messages.removed_artifacts(bucket))
            elif self._holds(bucket.id):
                await self._store.apply_bucket(bucket_messages.desired(bucket))
                self._purge(bucket.id)
        except StoreUnavailable:
            raise
        except ObjectStoreError as error:
            logger.warning("Bucket %s cannot reach its desired state: %s", bucket.id, error)
            self._problems[bucket.id] = str(error)

    def _holds(self, bucket_id: str) -> bool:
        return any(each.id == bucket_id for each in self._store.buckets())

    def _purge(self, bucket_id: str) -> None:
        if bucket_id not in self._purging:
            task = self._purging[bucket_id] = asyncio.create_task(self._purge_whole(bucket_id))
            task.add_done_callback(lambda _: self._purging.pop(bucket_id, None))

    async def _purge_whole(self, bucket_id: str) -> None:
        """Remove a bucket with all that it holds. Failed changes are tried again."""
        while True:
            try:
                while not await self._store.purge_bucket(bucket_id):
                    pass
                await self._store.forget_bucket(bucket_id)
                break
            except NoSuchBucket:
                break
            except ObjectStoreError as error:
                if self._problems.get(bucket_id) != str(error):
                    logger.warning("Bucket %s cannot be purged yet: %s", bucket_id, error)
                self._problems[bucket_id] = str(error)
                is_locked = isinstance(error, ObjectLocked)
                await self._clock.sleep(LOCKED_SECONDS if is_locked else AWAY_SECONDS)
        self._problems.pop(bucket_id, None)
        await self._try_report()

    async def _try_report(self) -> None:
        with self._report_errors.kept():
            try:
                for part in bucket_messages.in_parts(await self.whole_report()):
                    await self._control_plane.report(part)
                self._report_away.answered()
            except ControlPlaneUnavailable as error:
                self._report_away.note(error)

    async def whole_report(self) -> ReportBucketsRequest:
        request = ReportBucketsRequest(
            buckets=await self.reports(),
            is_complete=True,
            endpoint=self._own.endpoint,
            tls_port=self._own.tls_port,
        )
        if (last := self._own.scrub()) is not None:
            request.scrub.CopyFrom(bucket_messages.scrub_report(last))
        if isinstance(blobs := self._store.engine.blobs, S3Blobs):
            request.blob_place.CopyFrom(bucket_messages.blob_place(blobs))
        return request

    async def reports(self) -> Sequence[BucketReport]:
        found: list[BucketReport] = []
        held = {bucket.id: bucket for bucket in self._store.buckets()}
        for bucket in held.values():
            try:
                is_empty = await self._store.is_empty(bucket.id)
                is_hidden = bucket.state is BucketState.SCHEDULED_FOR_DELETION
                is_protected = is_hidden and self._store.is_protected(bucket.id)
                counters = self._store.counters(bucket.id)
            except NoSuchBucket:
                continue  # purged meanwhile, which the next report says
            problem = self._problems.get(bucket.id, "")
            is_registry = bucket.kind is BucketKind.REGISTRY
            report = bucket_messages.report(
                bucket,
                counters,
                is_empty=is_empty,
                is_protected=is_protected,
                problem=problem,
                image_count=self._store.image_count(bucket.id) if is_registry else 0,
                removed=self._store.removed_images(bucket.id) if is_registry else None,
            )
            found.append(report)
        for bucket in self._known.buckets:
            if bucket.mode == bucket_messages.PURGE and bucket.id not in held:
                found.append(bucket_messages.purged(bucket))
            elif bucket.id not in held and bucket.id in self._problems:
                problem = self._problems[bucket.id]
                found.append(BucketReport(id=bucket.id, name=bucket.name, problem=problem))
        return found
