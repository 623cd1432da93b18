"""Build the gateway from its components."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from neocloud.core.clock import Clock, SystemClock
from neocloud.data_plane.gateway_keys import gateway_key_file
from neocloud.data_plane.metrics_keys import load_or_make_gateway_scrape_key
from neocloud.messages.neocloud.inference.v1 import ListRoutesResponse, ProjectFileBucket
from neocloud.model_gateway.api import models_api
from neocloud.model_gateway.api.app import GatewayApp
from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.authentication import Authenticator
from neocloud.model_gateway.control_plane import CallerApi, ControlPlane, GrpcCallerApi
from neocloud.model_gateway.feedback.api import FeedbackApi
from neocloud.model_gateway.feedback.store import RatingStore
from neocloud.model_gateway.metering.ledger import Ledger
from neocloud.model_gateway.metering.recorder import UsageRecorder
from neocloud.model_gateway.openai_files.batch_run import BatchClient, ProxyBatchClient
from neocloud.model_gateway.openai_files.batch_runner import BatchRunner
from neocloud.model_gateway.openai_files.batches import BatchRows
from neocloud.model_gateway.openai_files.batches_api import BatchesApi
from neocloud.model_gateway.openai_files.bucket_files import BucketFiles, FileKeys
from neocloud.model_gateway.openai_files.files import FileStore
from neocloud.model_gateway.openai_files.files_api import FilesApi
from neocloud.model_gateway.openai_files.fine_tuning import TuningApi
from neocloud.model_gateway.openai_files.handlers import CallerAuthenticator, refusal
from neocloud.model_gateway.openai_files.quota import StorageLimits
from neocloud.model_gateway.pages.routes import Pages
from neocloud.model_gateway.retrieval.embedder import ProxyEmbedder
from neocloud.model_gateway.retrieval.service import Retrieval
from neocloud.model_gateway.routing.proxy import Proxy
from neocloud.model_gateway.routing.releases import Releases
from neocloud.model_gateway.routing.routes import LoadBalancer, RouteTable, RouteWatcher
from neocloud.model_gateway.routing.traffic import Metrics, Traffic
from neocloud.model_gateway.routing.upstream import ConnectionPool
from neocloud.model_gateway.settings import FileSettings, GatewaySettings


class OpenAiFiles:
    """Files, batches and fine-tuning jobs. `api` is the address of the control plane."""

    def __init__(
        self,
        home: Path,
        callers: CallerAuthenticator,
        batch_client: BatchClient,
        file_keys: FileKeys,
        api: str,
        *,
        file_buckets: Callable[[], Iterable[ProjectFileBucket]] = tuple[ProjectFileBucket],
        settings: FileSettings | None = None,
        clock: Clock | None = None,
        calls: CallerApi | None = None,
    ) -> None:
        settings, clock = settings or FileSettings(), clock or SystemClock()
        self._callers = callers
        self.files = FileStore(home, clock)
        quota = self.files.quota(
            StorageLimits(settings.max_project_files, settings.max_project_bytes, settings.min_free_bytes)
        )
        self.buckets = BucketFiles(self.files, file_keys, file_buckets)
        self._files_api = FilesApi(self.files, self.buckets, quota, settings)
        rows = BatchRows(self.files.database)
        self._runner = BatchRunner(
            home, rows, self.files, self.buckets, callers, batch_client, settings, clock
        )
        self._settling: asyncio.Task[None] | None = None
        self._calls = calls or GrpcCallerApi(api, gateway_key_file(home))
        self._tuning_api = TuningApi(self.files, self._calls)
        self._batches_api = BatchesApi(rows, self.files, quota, self._runner, settings, clock)

    def routes(self) -> list[Route]:
        apis = (self._files_api, self._batches_api, self._tuning_api)
        return [route for api in apis for route in api.routes(self._callers)]

    @property
    def app(self) -> Starlette:
        """The same routes as an ASGI application of their own."""
        return Starlette(routes=self.routes(), exception_handlers={404: _unknown_path, 405: _unknown_method})

    def when_deleted(self, notify: Callable[[str], Awaitable[None]]) -> None:
        """Call `notify` with the id of each file that is deleted or has expired."""
        self._files_api.deleted = self.buckets.deleted = notify

    async def start(self) -> None:
        """Remove what a crash left behind, and resume unfinished batches."""
        await asyncio.to_thread(self.files.sweep)
        self._settling = asyncio.create_task(self.buckets.settle_periodically())
        await self._runner.start()

    async def stop(self) -> None:
        """Stop running batches; the next start resumes them."""
        await self._runner.stop()
        if self._settling is not None:
            self._settling.cancel()
            await asyncio.gather(self._settling, return_exceptions=True)
        if isinstance(self._calls, GrpcCallerApi):
            await self._calls.close()


async def _unknown_path(request: Request, error: Exception) -> Response:
    message = f"Unknown URL: {request.url.path}. The paths are those of the OpenAI API, below /v1."
    return refusal(OpenAiError(404, message, code="unknown_url"))


async def _unknown_method(request: Request, error: Exception) -> Response:
    return refusal(
        OpenAiError(405, f"{request.url.path} does not accept {request.method}.", code="unknown_url")
    )


class Gateway:
    """A gateway. `app` is served within `running`."""

    def __init__(
        self, settings: GatewaySettings, control_plane: ControlPlane, ledger: Ledger, clock: Clock
    ) -> None:
        self._control_plane = control_plane
        self.recorder = UsageRecorder(ledger, clock)
        self.table = RouteTable()
        self.balancer = LoadBalancer(clock)
        self.pool = ConnectionPool()
        self.traffic = Traffic(clock)
        self.metrics = Metrics(self.traffic.in_flight)
        self.authenticator = Authenticator(control_plane, settings, clock)
        self.releases = Releases(self.table)
        self.proxy = Proxy(
            self.table,
            self.recorder,
            self.balancer,
            self.pool,
            self.traffic,
            self.metrics,
            settings,
            self.releases,
        )
        self._route_watcher = RouteWatcher(
            control_plane, self.table, settings.routes_file, self._routes_changed, clock
        )
        batch_client = ProxyBatchClient(self.proxy, self.authenticator, self.traffic, settings.media_domains)
        self.objects = OpenAiFiles(
            *(settings.home, self.authenticator, batch_client, control_plane, settings.api),
            clock=clock,
            file_buckets=lambda: self.table.response.file_buckets,
        )
        embedder = ProxyEmbedder(self.proxy, self.table, self.authenticator)
        files, buckets = self.objects.files, self.objects.buckets
        self.retrieval = Retrieval(
            settings.home, self.authenticator, files, buckets, embedder, clock, self.table
        )
        self.objects.when_deleted(self.retrieval.files.file_deleted)
        model_routes = models_api.routes(
            *(self.authenticator, self.table, self.metrics, lambda: self._route_watcher.poll.is_connected),
            lambda headers: load_or_make_gateway_scrape_key(settings.home).is_shown(headers),
        )
        pages = Pages(self.authenticator, self._answer, clock)
        self._ratings = RatingStore(settings.home / "gateway" / "feedback.db", clock)
        feedback = FeedbackApi(self._ratings, self.proxy.answers)
        more = (*feedback.routes(self.authenticator), *self.retrieval.routes())
        routes = [*model_routes, *self.objects.routes(), *more, *pages.routes()]
        self.app = GatewayApp(self.authenticator, self.proxy, settings, routes, self.retrieval.responses)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        self.authenticator.load_from_disk()
        self._route_watcher.load_from_disk()
        loops = [
            asyncio.create_task(self._route_watcher.poll.run()),
            asyncio.create_task(self.traffic.report_periodically(self._control_plane)),
            asyncio.create_task(self.releases.report_periodically(self._control_plane)),
            asyncio.create_task(self.proxy.stop_silent_periodically()),
            asyncio.create_task(self.proxy.recheck_access_periodically()),
            asyncio.create_task(self.authenticator.save_periodically()),
            asyncio.create_task(self.authenticator.renew_periodically()),
        ]
        await self.objects.start()
        await self.retrieval.start()
        try:
            yield
        finally:
            await self.retrieval.stop()
            await self.objects.stop()
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            self.pool.close()
            self._ratings.close()
            with suppress(OSError):  # was logged while it ran
                self.authenticator.save_to_disk()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)

    def _routes_changed(self, response: ListRoutesResponse) -> None:
        self.recorder.update_terms(response)
        self.releases.follow(response)
        addresses = self.table.addresses()
        self.pool.keep_only(addresses)
        self.balancer.keep_only(addresses)
        self.proxy.turns.keep_only({deployment.id for deployment in self.table.deployments})
