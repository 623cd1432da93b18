"""Runs one transfer: iteration after iteration, until its stop condition is met, it fails, or it is ended."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from neocloud.core.clock import Clock
from neocloud.messages.nebius.storage.v1 import TransferDestination, TransferSource, TransferSpec
from neocloud.messages.neocloud.storage.v1 import GatewayTransfer
from neocloud.object_gateway.work.transfers.copying import Copier
from neocloud.object_gateway.work.transfers.iteration import Iteration, Places
from neocloud.object_gateway.work.transfers.plan import Strategy
from neocloud.object_gateway.work.transfers.records import (
    AfterIteration,
    IterationRow,
    Outcome,
    Phase,
    Records,
)
from neocloud.object_gateway.work.transfers.types import Origin, message
from neocloud.object_store.errors import ObjectStoreError
from neocloud.object_store.metadata.transaction import to_time
from neocloud.s3_client.client import S3Bucket
from neocloud.s3_client.http import HttpEndpoint
from neocloud.s3_client.limits import Limits
from neocloud.s3_client.network import Resolve, checked_pool, resolve, trusted_pool
from neocloud.s3_client.types import Endpoint, EndpointError

MOST_FAILURES = 3
"""Iterations that fail one after the other, until the transfer has failed."""
SHORTEST_PAUSE = timedelta(seconds=1)
_STORE_SECONDS = 5.0
"""Between attempts while the store cannot write."""
_ABORT_SECONDS = 30.0
_IF_NEWER = TransferSpec.OverwriteStrategy.Value("IF_NEWER")
_Provider = (
    TransferSource.NebiusProvider
    | TransferSource.S3CompatibleProvider
    | TransferDestination.NebiusProvider
    | TransferDestination.S3CompatibleProvider
)
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TransferNetwork:
    """The endpoints to which transfers may connect."""

    own_endpoint: str
    """Host and port of this object gateway: "127.0.0.1:8902"."""
    region: str
    allow_private: bool = False
    resolve: Resolve = resolve
    trusted: ssl.SSLContext | None = None
    """The authorities of certificates; None: those of the machine."""


class TransferRunner:
    def __init__(
        self,
        desired: GatewayTransfer,
        network: TransferNetwork,
        records: Records,
        clock: Clock,
        slots: asyncio.Semaphore,
        has_changed: Callable[[], Awaitable[None]],
    ) -> None:
        """`slots` are for iterations of the tenant's transfers; `has_changed` is called after each."""
        self._desired, self._spec, self._id = desired, desired.spec, desired.id
        self._network, self._records, self._clock = network, records, clock
        self._slots, self._has_changed = slots, has_changed

    async def run(self) -> None:
        """Run until the transfer ends by itself, or until cancelled."""
        while (row := self._records.find(self._id)) is not None and row.phase == Phase.RUNNING:
            try:
                pause = (to_time(row.next_ms) - self._clock.now()).total_seconds()
                if pause > 0:
                    await self._clock.sleep(pause)
                async with self._slots:
                    await self._iterate()
            except ObjectStoreError as error:
                logger.warning("Transfer %s waits for the object store: %s", self._id, error)
                await self._clock.sleep(_STORE_SECONDS)
            await self._has_changed()

    async def _iterate(self) -> None:
        begun = await self._records.begin(self._id)
        await self._has_changed()
        error: EndpointError | None = None
        try:
            await self._transfer(begun)
        except EndpointError as raised:
            error = raised
        except ObjectStoreError:
            raise
        except Exception:  # the border of the loop: an error in one transfer must not end the others
            logger.exception("Transfer %s failed", self._id)
            text = "The object gateway failed; the operator finds why in its log."
            error = EndpointError(Origin.DESTINATION, "InternalError", text, is_transient=True)
        await self._records.end(self._id, self._after(error))

    async def _transfer(self, begun: IterationRow) -> None:
        source, destination = self._buckets()
        spec = self._spec
        places = Places(
            source,
            destination,
            spec.source.prefix,
            spec.destination.prefix,
            Strategy(spec.overwrite_strategy == _IF_NEWER, spec.enable_deletes_in_destination),
            spec.touch_unmanaged,
        )
        try:
            await Iteration(self._id, places, self._records, self._clock).run(begun.position.decode())
        finally:
            await source.close()
            await destination.close()

    def _after(self, error: EndpointError | None) -> AfterIteration:
        """Return what follows from the end of the iteration in progress."""
        row, last = self._records.find(self._id), self._records.last_iteration(self._id)
        assert row is not None and last is not None
        spec = self._spec
        pause = max(spec.inter_iteration_interval.ToTimedelta(), SHORTEST_PAUSE)
        if error is not None:
            logger.info("Iteration %d of transfer %s failed: %s", last.number, self._id, error)
            failures = row.failures + 1
            is_final = not error.is_transient or failures >= MOST_FAILURES
            phase = Phase.FAILED if is_final else Phase.RUNNING
            return AfterIteration(Outcome.FAILED, phase, 0, failures, message(error), pause)
        empty = 0 if last.objects else row.empty_iterations + 1
        condition = spec.WhichOneof("stop_condition")
        most = spec.after_n_empty_iterations.empty_iterations_threshold
        is_over = condition == "after_one_iteration" or (
            condition == "after_n_empty_iterations" and empty >= most
        )
        phase = Phase.FINISHED if is_over else Phase.RUNNING
        return AfterIteration(Outcome.COMPLETED, phase, empty, 0, None, pause)

    async def abort_uploads(self) -> None:
        """Abort the unfinished uploads in the destination, if it answers."""
        if not self._records.uploads(self._id):
            return
        try:
            source, destination = self._buckets()
            try:
                async with asyncio.timeout(_ABORT_SECONDS):
                    await Copier(self._id, source, destination, self._records, self._clock).abort_uploads()
            finally:
                await source.close()
                await destination.close()
        except (EndpointError, ObjectStoreError, TimeoutError) as error:
            logger.warning("Unfinished uploads of transfer %s stay in its destination: %s", self._id, error)

    def _buckets(self) -> tuple[S3Bucket, S3Bucket]:
        """Return the source and the destination. Raises EndpointError."""
        limiters = self._spec.limiters
        limits = Limits(limiters.bandwidth_bytes_per_second, limiters.requests_per_second, self._clock)
        desired = self._desired
        source = _endpoint(self._spec.source, Origin.SOURCE, desired.source_secret, self._network)
        destination = _endpoint(
            self._spec.destination, Origin.DESTINATION, desired.destination_secret, self._network
        )
        return self._bucket(source, limits), self._bucket(destination, None)

    def _bucket(self, endpoint: Endpoint, limits: Limits | None) -> S3Bucket:
        network = self._network
        if endpoint.is_own:
            return S3Bucket(HttpEndpoint(endpoint, trusted_pool("http"), limits))
        pool = checked_pool(
            endpoint.url.partition(":")[0],
            allow_private=network.allow_private,
            resolve=network.resolve,
            trusted=network.trusted,
        )
        return S3Bucket(HttpEndpoint(endpoint, pool, limits))


def _endpoint(
    side: TransferSource | TransferDestination, origin: Origin, secret: str, network: TransferNetwork
) -> Endpoint:
    is_own = side.WhichOneof("provider") == "nebius"
    given: _Provider = side.nebius if is_own else side.s3_compatible
    if isinstance(given, TransferSource.NebiusProvider | TransferDestination.NebiusProvider):
        url = f"http://{network.own_endpoint}"
        if given.region != network.region:
            raise EndpointError(
                origin,
                "InvalidRegion",
                f"This cloud is region {network.region}; name the endpoint of another one as s3_compatible.",
            )
    else:
        url = given.endpoint
    is_signed = given.HasField("access_key")
    return Endpoint(
        origin,
        url,
        given.region,
        given.bucket_name,
        given.access_key.access_key_id if is_signed else "",
        secret if is_signed else "",
        is_own,
    )
