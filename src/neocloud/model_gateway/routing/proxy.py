"""Serve one model request: check it, record it, send it to a replica and pass the response on.

Each record is closed exactly once, whatever happens. A request is sent again to another replica only while
nothing of a response was passed on, and at most `MAX_RESENDS` times: a request that crashes one model server
would crash the next one, too. The proxy knows nothing of ASGI; a `ResponseWriter` takes the response.
"""

import asyncio
import logging
import time

from neocloud.core.logs import bind
from neocloud.model_gateway.api.errors import (
    ACCESS_ENDED,
    STOPPED_STATES,
    OpenAiError,
    access_ended_error,
    adapter_not_loaded_error,
    model_not_found,
    no_replicas_error,
    replica_lost_error,
    unavailable,
)
from neocloud.model_gateway.api.request import RequestContext
from neocloud.model_gateway.authentication import INVOKE
from neocloud.model_gateway.compiled.turns import CompilationTurns
from neocloud.model_gateway.metering.recorder import RequestRecord, UsageRecorder
from neocloud.model_gateway.metering.usage import EventTooLong
from neocloud.model_gateway.routing.answers import RecentAnswers
from neocloud.model_gateway.routing.relay import (
    CLIENT_LEFT,
    REPLICA_SILENT,
    GenerationSpeeds,
    RequestStopped,
    ResponseRelay,
    ResponseWriter,
    request_start,
)
from neocloud.model_gateway.routing.releases import ActiveRelease, Releases
from neocloud.model_gateway.routing.routes import Deployment, LoadBalancer, Replica, RouteTable, Target
from neocloud.model_gateway.routing.traffic import Metrics, Traffic
from neocloud.model_gateway.routing.upstream import ConnectionPool, ReplicaFailed, model_request
from neocloud.model_gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)

MAX_RESENDS = 2
HTTP_OK = 200
HTTP_TOO_MANY_REQUESTS = 429
SILENCE_CHECK_SECONDS = 1.0
LOG_INTERVAL_SECONDS = 1.0


class Proxy:
    def __init__(
        self,
        table: RouteTable,
        recorder: UsageRecorder,
        balancer: LoadBalancer,
        pool: ConnectionPool,
        traffic: Traffic,
        metrics: Metrics,
        settings: GatewaySettings,
        releases: Releases,
    ) -> None:
        self._table = table
        self._recorder = recorder
        self._balancer = balancer
        self._pool = pool
        self._traffic = traffic
        self._metrics = metrics
        self._settings = settings
        self._releases = releases
        self._speeds = GenerationSpeeds()
        self.turns = CompilationTurns()
        self.answers = RecentAnswers()
        self._active: set[ResponseRelay] = set()
        self._warned_at: dict[str, float] = {}
        """When a failure was last logged, by address of the replica."""

    def new_relay(self, context: RequestContext, writer: ResponseWriter) -> ResponseRelay:
        """Return the relay of a request, for `answer`."""
        return ResponseRelay(context, writer, self._metrics, self._speeds)

    async def answer(self, relay: ResponseRelay) -> None:
        """Serve a request.

        Raises OpenAiError while nothing was passed on, RequestStopped when the client left.
        """
        context = relay.context
        target = self._find_target(relay)
        context.request.require_task(target.deployment.task)
        if target.deployment.hides_tools:
            context.request.require_demanded_call()
        self._active.add(relay)
        self._traffic.batch_requests += context.is_batch
        try:
            candidate = await self._serve_by_candidate(relay)
            if candidate is not None:
                target = candidate
                return
            target = await self._wait_until_ready(target, relay)
            await self._serve(relay, target)
        except RequestStopped as error:
            if relay.stop_reason != ACCESS_ENDED:
                raise
            refusal = access_ended_error()
            relay.status = refusal.status
            raise refusal from error
        except OpenAiError as error:
            relay.status = error.status
            raise
        finally:
            self._traffic.batch_requests -= context.is_batch
            self._active.discard(relay)
            relay.leave_turn()
            self._observe(relay, target)

    async def _serve_by_candidate(self, relay: ResponseRelay) -> Target | None:
        """Serve the request by the candidate of a release, if it is one of its share, and return that.

        The model itself serves what fails before anything was passed on, or is above the candidate's limits.
        """
        chosen = self._releases.choose(relay.caller.tenant_id, relay.context.request.model)
        if chosen is None or not relay.caller.may(INVOKE, chosen[1].project_id):
            return None
        release, target = chosen
        begun = time.perf_counter()
        try:
            await self._serve(relay, target, release)
        except OpenAiError as error:
            is_its_fault = error.status >= 500 and relay.stop_reason in ("", REPLICA_SILENT)
            if is_its_fault:
                release.add(failed=True, first_byte_seconds=0.0)
            is_at_its_limit = error.status == HTTP_TOO_MANY_REQUESTS
            if relay.stop_reason or not (is_its_fault or is_at_its_limit):
                raise
            relay.start_again()
            return None
        if relay.stop_reason in ("", REPLICA_SILENT):
            release.add(failed=relay.is_lost, first_byte_seconds=relay.first_byte_at - begun)
        return target

    async def _serve(
        self, relay: ResponseRelay, target: Target, release: ActiveRelease | None = None
    ) -> None:
        """Record the request and forward it to a replica of the target."""
        context, deployment = relay.context, target.deployment
        context.request.require_length(deployment.context_length)
        if target.load_error:
            raise adapter_not_loaded_error(target.name, target.load_error)
        await self._take_turn(relay, deployment.id)
        record = await self._recorder.open(request_start(context, target))
        self._traffic.started(deployment.id)
        try:
            await self._forward(relay, target, record)
        finally:
            self._traffic.finished(deployment.id)
        if relay.status == HTTP_OK and not relay.stop_reason and not context.is_batch:
            self.answers.add(context, target, release)

    async def _take_turn(self, relay: ResponseRelay, deployment_id: str) -> None:
        """Wait until the model server may compile what this request brings with it."""
        context = relay.context
        relay.turn = await self.turns.take(
            deployment_id,
            context.caller.subject_id,
            context.request.compiled,
            relay.wait_for,
            is_batch=context.is_batch,
        )

    async def stop_silent_periodically(self) -> None:
        """Stop requests whose model server has sent nothing for too long."""
        while True:
            await asyncio.sleep(SILENCE_CHECK_SECONDS)
            oldest = time.perf_counter() - self._settings.silence_seconds
            for relay in [relay for relay in self._active if 0 < relay.waits_since < oldest]:
                with bind(request_id=relay.context.request_id):
                    logger.warning("the model server sent nothing for %g s", self._settings.silence_seconds)
                relay.stop(REPLICA_SILENT)

    async def recheck_access_periodically(self) -> None:
        """Stop requests whose caller has lost access, whether they wait, are computed or are being sent."""
        while True:
            await asyncio.sleep(self._settings.renew_seconds / 8)
            before = time.perf_counter() - self._settings.renew_seconds
            due = [relay for relay in self._active if relay.access_checked_at < before]
            await asyncio.gather(*(self._recheck_access(relay) for relay in due))

    async def _recheck_access(self, relay: ResponseRelay) -> None:
        context = relay.context
        if context.refresh_caller is None:
            return
        relay.access_checked_at = time.perf_counter()
        try:
            caller = await context.refresh_caller()
        except OpenAiError as error:
            if error.status == 401:
                self._end_access(relay)
            return  # otherwise unknown; checked again when it is due
        except Exception:
            with bind(request_id=context.request_id):
                logger.exception("access could not be checked")
            return
        relay.caller = caller
        target = self._table.find(caller.tenant_id, context.request.model)
        if not caller.may(INVOKE, context.project_id) or (
            target is not None and not caller.may(INVOKE, target.project_id)
        ):
            self._end_access(relay)

    @staticmethod
    def _end_access(relay: ResponseRelay) -> None:
        with bind(request_id=relay.context.request_id):
            logger.info("access ended, the request is stopped")
        relay.stop(ACCESS_ENDED)

    def _find_target(self, relay: ResponseRelay) -> Target:
        caller, name = relay.caller, relay.context.request.model
        target = self._table.find(caller.tenant_id, name)
        if target is not None:
            target = self._releases.current(target)
        if target is None or not caller.may(INVOKE, target.project_id):
            if not self._table.is_known:
                raise unavailable(
                    "The list of models is not available yet: the control plane is not reachable. Try again.",
                    retry_after=2,
                    code="control_plane_unavailable",
                )
            raise model_not_found(name)
        return target

    async def _wait_until_ready(self, target: Target, relay: ResponseRelay) -> Target:
        """Return the newest target with a ready replica; wait for one if the client requested that."""
        if target.deployment.replicas:
            return target
        deployment_id, wait_seconds = target.deployment.id, relay.context.wait_seconds
        if wait_seconds <= 0:
            self._traffic.count_refused(deployment_id)
            raise _no_replicas(target)
        deadline = time.perf_counter() + wait_seconds
        self._traffic.start_waiting(deployment_id)
        try:
            while not target.deployment.replicas:
                left = deadline - time.perf_counter()
                if left <= 0 or target.deployment.state in STOPPED_STATES:
                    raise _no_replicas(target)
                await relay.wait_for(self._table.change(), left)
                target = self._find_target(relay)
        finally:
            self._traffic.stop_waiting(deployment_id)
        return target

    async def _forward(self, relay: ResponseRelay, target: Target, record: RequestRecord) -> None:
        """Send the request, pass the response on, and close the record."""
        relay.begin(target, record)
        replica: Replica | None = None
        try:
            replica, first = await self._send(relay, target)
            await relay.pass_on(first)
        except OpenAiError:
            raise
        except (ReplicaFailed, EventTooLong, RequestStopped) as error:
            if relay.stop_reason == CLIENT_LEFT:
                raise RequestStopped(relay.stop_reason) from error
            if relay.stop_reason == ACCESS_ENDED and not relay.has_started:
                raise RequestStopped(relay.stop_reason) from error
            address = replica.address if replica else "no replica"
            self._warn(address, "response lost (%s): %s", relay.context.request_id, error)
            await relay.fail(error)
        except asyncio.CancelledError:
            relay.stop_reason = relay.stop_reason or CLIENT_LEFT
            raise
        finally:
            if replica is not None:
                self._release(relay, replica)
            usage, outcome = relay.result()
            record.close(usage, outcome)
            if usage is not None:
                self._metrics.used(target.name, usage)

    def _release(self, relay: ResponseRelay, replica: Replica) -> None:
        self._balancer.finished(replica.address)
        connection = relay.release_connection()
        if connection is not None:
            self._pool.release(replica.address, connection)
        if relay.is_lost and relay.stop_reason != ACCESS_ENDED:
            self._balancer.failed(replica.address)
            self.turns.forget(relay.deployment_id)
        elif not relay.stop_reason:
            self._balancer.succeeded(replica.address)

    async def _send(self, relay: ResponseRelay, target: Target) -> tuple[Replica, bytes]:
        """Return the replica that responds, and the first bytes of its response."""
        request = relay.context.request
        body = request.for_model_server(target.served_name)
        tried: set[str] = set()
        resends = 0
        needs_new_connection = False
        while True:
            relay.raise_if_stopped()
            replica = self._balancer.choose(target, request.prefix, tried)
            if replica is None:
                raise unavailable(
                    f"No replica of {target.name!r} accepted the request. Try again.",
                    retry_after=2,
                    code="no_replica",
                )
            self._balancer.started(replica.address)
            try:
                connection = await self._pool.acquire(
                    replica.address, fresh=needs_new_connection, proved_key=_key_to_prove(target.deployment)
                )
                data = model_request(
                    replica.address,
                    request.path,
                    body,
                    key=target.deployment.server_key,
                    request_id=relay.context.request_id,
                )
                return replica, await relay.send(connection, data)
            except ReplicaFailed as error:
                self._balancer.finished(replica.address)
                connection = relay.release_connection()
                if connection is not None:
                    connection.abort()
                if relay.stop_reason == REPLICA_SILENT:
                    self._balancer.failed(replica.address)
                relay.raise_if_stopped()
                resends += error.was_sent
                if resends > MAX_RESENDS:
                    raise replica_lost_error() from error
                if error.was_sent and connection and connection.is_reused and not needs_new_connection:
                    needs_new_connection = True  # closed while idle; the replica did not fail
                    continue
                needs_new_connection = False
                tried.add(replica.address)
                self._replica_failed(relay.context, target, replica, error)
            except BaseException:
                self._balancer.finished(replica.address)
                connection = relay.release_connection()
                if connection is not None:
                    connection.abort()
                raise

    def _replica_failed(
        self, context: RequestContext, target: Target, replica: Replica, error: ReplicaFailed
    ) -> None:
        self._warn(replica.address, "replica %s failed: %s", context.request_id, error)
        self._balancer.failed(replica.address)
        if error.was_sent:
            self.turns.forget(target.deployment.id)
        self._metrics.upstream_error(target.deployment.id, "lost" if error.was_sent else "no_connection")

    def _warn(self, address: str, text: str, request_id: str, error: Exception) -> None:
        """Log a failure of a replica, at most one a second for each: an outage must not fill the disk."""
        now = time.perf_counter()
        if now - self._warned_at.get(address, -LOG_INTERVAL_SECONDS) >= LOG_INTERVAL_SECONDS:
            self._warned_at[address] = now
            with bind(request_id=request_id):
                logger.warning(text, address, error)

    def _observe(self, relay: ResponseRelay, target: Target) -> None:
        now = time.perf_counter()
        context = relay.context
        status = 499 if relay.stop_reason == CLIENT_LEFT else relay.status
        first = (relay.first_byte_at or now) - context.arrived_at
        self._metrics.answered(target.name, context.request.path, status, first, now - context.arrived_at)


def _no_replicas(target: Target) -> OpenAiError:
    deployment = target.deployment
    return no_replicas_error(
        target.name,
        deployment_id=deployment.id,
        state=deployment.state,
        start_seconds=deployment.start_seconds,
    )


def _key_to_prove(deployment: Deployment) -> str:
    """Return the key that its replicas must prove to have; "" where nothing else can answer for them."""
    if not deployment.must_prove:
        return ""
    if not deployment.server_key:
        raise ReplicaFailed("its deployment has no key yet", was_sent=False)
    return deployment.server_key
