"""Puts files, batches and fine-tuning together: what the gateway's process mounts, starts and stops."""

import asyncio
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from neocloud.core.clock import Clock, SystemClock
from neocloud.gateway.errors import OpenAiError
from neocloud.gateway.objects.answering import refusal
from neocloud.gateway.objects.batch_runner import BatchRunner
from neocloud.gateway.objects.batches import BatchRows
from neocloud.gateway.objects.batches_api import BatchesApi
from neocloud.gateway.objects.borders import Callers, Sender
from neocloud.gateway.objects.control_plane_calls import Calls, GrpcCalls
from neocloud.gateway.objects.file_store import FileStore
from neocloud.gateway.objects.files_api import FilesApi
from neocloud.gateway.objects.room import RoomLimits
from neocloud.gateway.objects.settings import ObjectSettings
from neocloud.gateway.objects.tuning_api import TuningApi
from neocloud.gateway_key import gateway_key_file


class Objects:
    """`api` is the control plane's address, where fine-tuning jobs are asked for."""

    def __init__(
        self,
        home: Path,
        callers: Callers,
        sender: Sender,
        api: str,
        *,
        settings: ObjectSettings | None = None,
        clock: Clock | None = None,
        calls: Calls | None = None,
    ) -> None:
        settings, clock = settings or ObjectSettings(), clock or SystemClock()
        self._callers = callers
        self.files = FileStore(home, clock)
        room = self.files.room(
            RoomLimits(settings.max_project_files, settings.max_project_bytes, settings.min_free_bytes)
        )
        self._files_api = FilesApi(self.files, room, settings)
        rows = BatchRows(self.files.database)
        self._runner = BatchRunner(home, rows, self.files, callers, sender, settings, clock)
        self._calls = calls or GrpcCalls(api, gateway_key_file(home))
        self._tuning_api = TuningApi(self.files, self._calls)
        self._batches_api = BatchesApi(rows, self.files, room, self._runner, settings, clock)

    def routes(self) -> list[Route]:
        apis = (self._files_api, self._batches_api, self._tuning_api)
        return [route for api in apis for route in api.routes(self._callers)]

    @property
    def app(self) -> Starlette:
        """The same as an ASGI application of its own; what it has not is refused as OpenAI does."""
        return Starlette(routes=self.routes(), exception_handlers={404: _no_path, 405: _no_method})

    async def start(self) -> None:
        """Removes what a crash left, and goes on with the batches that were running."""
        await asyncio.to_thread(self.files.sweep)
        await self._runner.start()

    async def stop(self) -> None:
        """Leaves batches to the next start."""
        await self._runner.stop()
        if isinstance(self._calls, GrpcCalls):
            await self._calls.close()


async def _no_path(request: Request, error: Exception) -> Response:
    message = f"Unknown URL: {request.url.path}. The paths are those of the OpenAI API, below /v1."
    return refusal(OpenAiError(404, message, code="unknown_url"))


async def _no_method(request: Request, error: Exception) -> Response:
    return refusal(
        OpenAiError(405, f"{request.url.path} does not accept {request.method}.", code="unknown_url")
    )
