"""One request to a model: checked, opened an account for, sent to a replica, passed back, its account closed.

Exactly one `Account.close` for each account, whatever happens. A request is sent again to another replica
only while nothing of an answer was passed on, and not more often than `MOST_RESENDS`: what makes one engine
die would make the next one die too. Knows nothing of ASGI: who takes the answer is a `Sink`.
"""

import asyncio
import logging
import time

from neocloud.gateway.accounts import Accounts, Opening
from neocloud.gateway.balance import Balancer
from neocloud.gateway.callers import INVOKE
from neocloud.gateway.engine_errors import RIGHT_ENDED, cold, lost, right_ended
from neocloud.gateway.errors import OpenAiError, model_not_found, unavailable
from neocloud.gateway.exchange import Exchange, Sink, Stopped
from neocloud.gateway.metrics import Metrics
from neocloud.gateway.passing import Passing
from neocloud.gateway.routes import Replica, RouteTable, Target
from neocloud.gateway.settings import GatewaySettings
from neocloud.gateway.speeds import Speeds
from neocloud.gateway.traffic import Traffic
from neocloud.gateway.upstream import Pool, ReplicaFailed
from neocloud.gateway.usage import EventTooLong

logger = logging.getLogger(__name__)

MOST_RESENDS = 2
SILENCE_CHECKS_SECONDS = 1.0


class Proxy:
    def __init__(
        self,
        table: RouteTable,
        accounts: Accounts,
        balancer: Balancer,
        pool: Pool,
        traffic: Traffic,
        metrics: Metrics,
        settings: GatewaySettings,
    ) -> None:
        self._table = table
        self._accounts = accounts
        self._balancer = balancer
        self._pool = pool
        self._traffic = traffic
        self._metrics = metrics
        self._settings = settings
        self._speeds = Speeds()
        self._exchanges: set[Exchange] = set()

    async def answer(self, exchange: Exchange, sink: Sink) -> None:
        """Raises OpenAiError while nothing was passed on, and Stopped when the client left."""
        target = self._target(exchange)
        exchange.asked.check_task(embeds=target.deployment.embeds)
        self._exchanges.add(exchange)
        self._traffic.batch_requests += exchange.is_batch
        try:
            target = await self._ready(target, exchange)
            asked, deployment = exchange.asked, target.deployment
            asked.check_length(deployment.context_length)
            exchange.account = await self._accounts.open(self._opening(exchange, target))
            self._traffic.started(deployment.id)
            try:
                await self._relay(exchange, target, sink)
            finally:
                self._traffic.finished(deployment.id)
        except Stopped as error:
            if exchange.reason != RIGHT_ENDED:
                raise
            refusal = right_ended()
            exchange.status = refusal.status
            raise refusal from error
        except OpenAiError as error:
            exchange.status = error.status
            raise
        finally:
            self._traffic.batch_requests -= exchange.is_batch
            self._exchanges.discard(exchange)
            self._count(exchange, target)

    async def stop_silent_forever(self) -> None:
        """Engines that say nothing for too long are given up."""
        while True:
            await asyncio.sleep(SILENCE_CHECKS_SECONDS)
            oldest = time.perf_counter() - self._settings.silence_seconds
            for exchange in [one for one in self._exchanges if 0 < one.heard_at < oldest]:
                exchange.stop("silent")

    async def renew_forever(self) -> None:
        """Requests whose right has ended are stopped, whether they wait, are computed or are being sent."""
        while True:
            await asyncio.sleep(self._settings.renew_seconds / 8)
            before = time.perf_counter() - self._settings.renew_seconds
            due = [one for one in self._exchanges if one.renew and one.renewed_at < before]
            await asyncio.gather(*(self._renew(one) for one in due))

    async def _renew(self, exchange: Exchange) -> None:
        assert exchange.renew is not None
        exchange.renewed_at = time.perf_counter()
        try:
            caller = await exchange.renew()
        except OpenAiError as error:
            if error.status == 401:
                exchange.stop(RIGHT_ENDED)
            return  # nobody can tell now; asked again when it is due
        except Exception:
            logger.exception("The right of request %s could not be looked at", exchange.request_id)
            return
        exchange.caller = caller
        target = self._table.find(caller.tenant_id, exchange.asked.model)
        if not caller.may(INVOKE, exchange.project_id) or (
            target is not None and not caller.may(INVOKE, target.project_id)
        ):
            exchange.stop(RIGHT_ENDED)

    def _target(self, exchange: Exchange) -> Target:
        caller, name = exchange.caller, exchange.asked.model
        target = self._table.find(caller.tenant_id, name)
        if target is None or not caller.may(INVOKE, target.project_id):
            if not self._table.is_known:
                raise unavailable(
                    "The list of models is not available yet: the control plane is not reachable. Try again.",
                    retry_after=2,
                    code="control_plane_unavailable",
                )
            raise model_not_found(name)
        return target

    async def _ready(self, target: Target, exchange: Exchange) -> Target:
        """The newest target with a replica that is ready; waits for one if the client asked for that."""
        if target.deployment.replicas:
            return target
        deployment_id = target.deployment.id
        if exchange.wait_seconds <= 0:
            self._traffic.refused(deployment_id)
            raise cold(target)
        deadline = time.perf_counter() + exchange.wait_seconds
        self._traffic.waits(deployment_id)
        try:
            while not target.deployment.replicas:
                left = deadline - time.perf_counter()
                if left <= 0 or target.deployment.state in ("STOPPED", "ERROR", "DELETING"):
                    raise cold(target)
                exchange.waiting = asyncio.ensure_future(self._table.change())
                await asyncio.wait({exchange.waiting}, timeout=left)
                exchange.waiting.cancel()
                exchange.waiting = None
                exchange.check()
                target = self._target(exchange)
        finally:
            self._traffic.waits_no_more(deployment_id)
        return target

    def _opening(self, exchange: Exchange, target: Target) -> Opening:
        asked, caller = exchange.asked, exchange.caller
        return Opening(
            request_id=exchange.request_id,
            tenant_id=caller.tenant_id,
            project_id=exchange.project_id,
            subject_id=caller.subject_id,
            deployment_id=target.deployment.id,
            model_name=target.name,
            input_tokens=asked.input_tokens,
            max_output_tokens=asked.most_output_tokens(target.deployment.context_length),
            is_batch=exchange.is_batch,
        )

    async def _relay(self, exchange: Exchange, target: Target, sink: Sink) -> None:
        """From here on there is an account, and it is closed here."""
        account = exchange.account
        assert account is not None
        passing = Passing(exchange, target, sink, self._metrics, self._speeds)
        replica: Replica | None = None
        try:
            replica, first = await self._send(exchange, target)
            await passing.all(first)
        except OpenAiError:
            raise
        except (ReplicaFailed, EventTooLong, Stopped) as error:
            if exchange.reason == "client_left":
                raise Stopped(exchange.reason) from error
            if exchange.reason == RIGHT_ENDED and not passing.has_started:
                raise Stopped(exchange.reason) from error
            await passing.lost(error)
        except asyncio.CancelledError:
            exchange.reason = exchange.reason or "client_left"
            raise
        finally:
            if replica is not None:
                self._let_go(exchange, replica, passing)
            usage, outcome = passing.result()
            account.close(usage, outcome)
            if usage is not None:
                self._metrics.used(target.name, usage)

    def _let_go(self, exchange: Exchange, replica: Replica, passing: "Passing") -> None:
        self._balancer.finished(replica.address)
        if exchange.connection is not None:
            self._pool.give_back(replica.address, exchange.connection)
            exchange.connection = None
        if passing.is_lost and exchange.reason != RIGHT_ENDED:
            self._balancer.failed(replica.address)
        elif not exchange.reason:
            self._balancer.succeeded(replica.address)

    async def _send(self, exchange: Exchange, target: Target) -> tuple[Replica, bytes]:
        """The replica that answers, and the first of what it says."""
        body = exchange.asked.for_engine(target.engine_name)
        tried: set[str] = set()
        resends = 0
        is_fresh = False
        while True:
            exchange.check()
            replica = self._balancer.choose(target, exchange.asked.prefix, tried)
            if replica is None:
                raise unavailable(
                    f"No replica of {target.name!r} accepted the request. Try again.",
                    retry_after=2,
                    code="no_replica",
                )
            self._balancer.started(replica.address)
            try:
                return replica, await self._attempt(exchange, target, replica, body, is_fresh)
            except ReplicaFailed as error:
                self._balancer.finished(replica.address)
                connection, exchange.connection = exchange.connection, None
                if connection is not None:
                    connection.abort()
                if exchange.reason == "silent":
                    self._balancer.failed(replica.address)
                exchange.check()
                resends += error.was_sent
                if resends > MOST_RESENDS:
                    raise lost() from error
                if error.was_sent and connection is not None and connection.is_reused and not is_fresh:
                    is_fresh = True  # it had been closed while unused: no fault of the replica
                    continue
                is_fresh = False
                tried.add(replica.address)
                self._balancer.failed(replica.address)
                self._metrics.upstream_error(
                    target.deployment.id, "lost" if error.was_sent else "no_connection"
                )
            except BaseException:
                self._balancer.finished(replica.address)
                if exchange.connection is not None:
                    exchange.connection.abort()
                raise

    async def _attempt(
        self, exchange: Exchange, target: Target, replica: Replica, body: bytes, is_fresh: bool
    ) -> bytes:
        connection = await self._pool.take(replica.address, fresh=is_fresh)
        exchange.connection = connection
        exchange.check()
        exchange.heard_at = exchange.sent_at = time.perf_counter()
        exchange.was_sent = True
        connection.send(_request(exchange, target, replica, body))
        status = await connection.head()
        if status in (502, 503):
            raise ReplicaFailed(f"it answered {status}", was_sent=False)
        exchange.status = status
        first = await connection.read()
        exchange.first_at = exchange.heard_at = time.perf_counter()
        if status == 200 and exchange.asked.is_stream:
            return first
        pieces = [first]
        while piece := await connection.read():
            pieces.append(piece)
            exchange.heard_at = time.perf_counter()
        return b"".join(pieces)

    def _count(self, exchange: Exchange, target: Target) -> None:
        now = time.perf_counter()
        status = 499 if exchange.reason == "client_left" else exchange.status
        first = (exchange.first_at or now) - exchange.arrived
        self._metrics.answered(target.name, exchange.asked.path, status, first, now - exchange.arrived)


def _request(exchange: Exchange, target: Target, replica: Replica, body: bytes) -> bytes:
    key = target.deployment.engine_key
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    head = (
        f"POST {exchange.asked.path} HTTP/1.1\r\nHost: {replica.address}\r\n{authorization}"
        f"Content-Type: application/json\r\nX-Request-Id: {exchange.request_id}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
