"""/v1/batches: create, list, get, cancel."""

import asyncio

from starlette.routing import Route

from neocloud.core.clock import Clock
from neocloud.core.contract.json_codec import JsonObject
from neocloud.model_gateway.api.errors import OpenAiError, bad_request, forbidden
from neocloud.model_gateway.authentication import INVOKE
from neocloud.model_gateway.openai_files.batch_runner import BatchRunner
from neocloud.model_gateway.openai_files.batches import (
    ENDPOINTS,
    Batch,
    BatchRows,
    batch_as_openai,
    new_batch_id,
    stored_caller,
)
from neocloud.model_gateway.openai_files.files import FileStore, StoredFile
from neocloud.model_gateway.openai_files.files_api import disk_error
from neocloud.model_gateway.openai_files.handlers import (
    ApiRequest,
    CallerAuthenticator,
    expiry,
    list_response,
    metadata,
    read_page,
    reject_unknown,
    route,
    text,
)
from neocloud.model_gateway.openai_files.quota import StorageQuota
from neocloud.model_gateway.settings import FileSettings

PERMISSION = "inference.batches"
KNOWN = {"input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after"}


class BatchesApi:
    def __init__(
        self,
        rows: BatchRows,
        files: FileStore,
        quota: StorageQuota,
        runner: BatchRunner,
        settings: FileSettings,
        clock: Clock,
    ) -> None:
        self._rows = rows
        self._quota = quota
        self._files = files
        self._runner = runner
        self._settings = settings
        self._clock = clock

    def routes(self, callers: CallerAuthenticator) -> list[Route]:
        return [
            route("POST", "/v1/batches", self.create, callers),
            route("GET", "/v1/batches", self.list, callers),
            route("GET", "/v1/batches/{batch_id}", self.get, callers),
            route("POST", "/v1/batches/{batch_id}/cancel", self.cancel, callers),
        ]

    async def create(self, request: ApiRequest) -> dict[str, object]:
        body = await request.body()
        project_id = request.project(f"{PERMISSION}.create")
        if not request.caller.may(INVOKE, project_id):
            raise forbidden(f"You do not have the permission {INVOKE} in the project {project_id}.")
        reject_unknown(body, KNOWN)
        batch = self._new(request, body, project_id)
        file = await asyncio.to_thread(self._files.find, batch.input_file_id)
        if file is None or file.project_id != project_id:
            message = f"There is no file {batch.input_file_id!r} in the project {project_id}."
            raise bad_request(message, param="input_file_id")
        if file.purpose != "batch":
            message = f'The file has the purpose {file.purpose!r}; upload it with the purpose "batch".'
            raise bad_request(message, param="input_file_id")
        await asyncio.to_thread(self._add, batch, file)
        self._runner.begin(batch.id)
        return batch_as_openai(batch)

    def _add(self, batch: Batch, file: StoredFile) -> None:
        batch.input_bytes = file.bytes
        with self._quota.batch(batch.project_id, file.bytes if file.bucket_id else 0):
            try:
                self._runner.prepare_folder(batch.id, file)
                self._rows.add(batch, self._settings.max_open_batches)
            except (OpenAiError, OSError) as error:
                self._runner.remove_folder(batch.id)
                raise disk_error(error) if isinstance(error, OSError) else error from error

    async def list(self, request: ApiRequest) -> dict[str, object]:
        project_id = request.project(f"{PERMISSION}.list")
        page = read_page(request.http.query_params, limit=20, most=100)
        batches, has_more = await asyncio.to_thread(self._rows.page, project_id, page)
        return list_response([batch_as_openai(batch) for batch in batches], has_more=has_more)

    async def get(self, request: ApiRequest) -> dict[str, object]:
        return batch_as_openai(await self._batch(request, "get"))

    async def cancel(self, request: ApiRequest) -> dict[str, object]:
        batch = await self._batch(request, "cancel")

        def change(batch: Batch) -> None:
            if batch.state in ("validating", "in_progress"):
                batch.enter("cancelling", self._now())
            elif batch.state not in ("cancelling", "cancelled"):
                message = f"The batch is {batch.state}; only unfinished batches can be cancelled."
                raise OpenAiError(409, message, code="batch_not_cancellable")

        batch = await asyncio.to_thread(self._rows.change, batch.id, change)
        self._runner.cancel(batch.id)
        return batch_as_openai(batch)

    async def _batch(self, request: ApiRequest, verb: str) -> Batch:
        batch_id = request.http.path_params["batch_id"]
        batch = await asyncio.to_thread(self._rows.find, batch_id)
        if batch is None or not request.sees(f"{PERMISSION}.{verb}", batch.project_id):
            message = f"The batch {batch_id!r} does not exist or you do not have access to it."
            raise OpenAiError(404, message, code="batch_not_found", param="batch_id")
        return batch

    def _new(self, request: ApiRequest, body: JsonObject, project_id: str) -> Batch:
        endpoint = text(body, "endpoint", required=True)
        if endpoint not in ENDPOINTS:
            message = f"Invalid endpoint {endpoint!r}. Supported endpoints: {', '.join(ENDPOINTS)}."
            raise bad_request(message, param="endpoint")
        if text(body, "completion_window", required=True) != "24h":
            raise bad_request('completion_window must be "24h".', param="completion_window")
        now = self._now()
        return Batch(
            id=new_batch_id(),
            project_id=project_id,
            endpoint=endpoint,
            input_file_id=text(body, "input_file_id", required=True),
            created_at=now,
            expires_at=now + self._settings.batch_window_seconds,
            caller=stored_caller(request.caller),
            metadata=metadata(body),
            output_expires_seconds=expiry(body.get("output_expires_after"), "output_expires_after"),
        )

    def _now(self) -> int:
        return int(self._clock.now().timestamp())
