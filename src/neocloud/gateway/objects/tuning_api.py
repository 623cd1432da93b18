"""/v1/fine_tuning/jobs: OpenAI's words for neocloud.tuning.v1.FineTuningJobService, asked with the caller's
own token.

The file is checked here, line by line, before a job is made of it.
"""

import asyncio
import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.routing import Route

from neocloud.gateway.errors import OpenAiError, bad_request, model_not_found
from neocloud.gateway.objects.answering import Asked, route, text
from neocloud.gateway.objects.borders import Callers
from neocloud.gateway.objects.checking import CheckFailed, check, require_turn
from neocloud.gateway.objects.control_plane_calls import Calls
from neocloud.gateway.objects.file_store import FileStore
from neocloud.gateway.objects.pages import cut, listed, page
from neocloud.gateway.objects.tuning_jobs import as_checkpoint, as_event, as_job, job_spec

log = logging.getLogger("neocloud.gateway.objects")
PERMISSION = "tuning.fineTuningJobs"
JOBS = "neocloud.tuning.v1.FineTuningJobService"
MODELS = "neocloud.inference.v1.ModelService"
PAGE_SIZE = 1000


class TuningApi:
    def __init__(self, files: FileStore, calls: Calls) -> None:
        self._files = files
        self._calls = calls

    def routes(self, callers: Callers) -> list[Route]:
        job = "/v1/fine_tuning/jobs/{job_id}"
        return [
            route("POST", "/v1/fine_tuning/jobs", self.create, callers),
            route("GET", "/v1/fine_tuning/jobs", self.list, callers),
            route("GET", job, self.get, callers),
            route("GET", f"{job}/events", self.events, callers),
            route("GET", f"{job}/checkpoints", self.checkpoints, callers),
            *(route("POST", f"{job}/{verb}", self._changing(verb), callers) for verb in VERBS),
        ]

    async def create(self, asked: Asked) -> dict[str, Any]:
        body = await asked.body()
        project_id = asked.project(f"{PERMISSION}.create")
        spec = job_spec(body)
        model_id = await self._model_id(asked, text(body, "model", required=True), project_id)
        for name in ("training_file", "validation_file"):
            if spec[name]:
                await self._check_file(asked, spec[name], project_id, name)
        name = "-".join(filter(None, ("ft", spec["suffix"], secrets.token_hex(4))))
        request = {
            "metadata": {"parent_id": project_id, "name": name},
            "spec": {**spec, "model_id": model_id},
        }
        operation = await self._call(asked, f"{JOBS}/Create", request)
        return await self._as_job(asked, await self._job(asked, operation.resource_id))

    async def list(self, asked: Asked) -> dict[str, Any]:
        project_id = asked.project(f"{PERMISSION}.list")
        query = asked.request.query_params
        every = await self._all(asked, f"{JOBS}/List", {"parent_id": project_id})
        wanted = {key[9:-1]: value for key, value in query.items() if key.startswith("metadata[")}
        jobs = [job for job in every if wanted.items() <= dict(job.spec.job_metadata).items()]
        jobs.sort(key=lambda job: (job.metadata.created_at.ToNanoseconds(), job.metadata.id), reverse=True)
        found, has_more = cut(jobs, page(query, limit=20, most=100), lambda job: job.metadata.id)
        models: dict[str, str] = {}
        return listed([await self._as_job(asked, job, models) for job in found], has_more=has_more)

    async def get(self, asked: Asked) -> dict[str, Any]:
        return await self._as_job(asked, await self._job(asked))

    async def events(self, asked: Asked) -> dict[str, Any]:
        job = await self._job(asked)
        events = await self._all(asked, f"{JOBS}/ListEvents", {"id": job.metadata.id})
        wanted = page(asked.request.query_params, limit=20, most=1000)
        found, has_more = cut(events[::-1], wanted, lambda event: event.id)  # the newest first, as OpenAI's
        return listed([as_event(event) for event in found], has_more=has_more)

    async def checkpoints(self, asked: Asked) -> dict[str, Any]:
        job = await self._job(asked)
        checkpoints = await self._all(asked, f"{JOBS}/ListCheckpoints", {"id": job.metadata.id})
        wanted = page(asked.request.query_params, limit=10, most=1000)
        found, has_more = cut(checkpoints, wanted, lambda checkpoint: checkpoint.id)
        return listed([as_checkpoint(each, job) for each in found], has_more=has_more)

    def _changing(self, verb: str) -> Any:
        async def change(asked: Asked) -> dict[str, Any]:
            job = await self._job(asked)
            await self._call(asked, f"{JOBS}/{VERBS[verb]}", {"id": job.metadata.id})
            return await self._as_job(asked, await self._job(asked))

        return change

    async def _job(self, asked: Asked, job_id: str = "") -> Any:
        job_id = job_id or asked.request.path_params["job_id"]
        try:
            job = await self._call(asked, f"{JOBS}/Get", {"id": job_id})
        except OpenAiError as error:
            if error.status in (400, 403, 404):  # whether there is none or it is another's
                raise _no_job(job_id) from error
            raise
        if not asked.sees(f"{PERMISSION}.get", job.metadata.parent_id):
            raise _no_job(job_id)
        return job

    async def _as_job(self, asked: Asked, job: Any, models: dict[str, str] | None = None) -> dict[str, Any]:
        names = {} if models is None else models
        model_id = job.spec.model_id
        if model_id not in names:
            try:
                names[model_id] = (await self._call(asked, f"{MODELS}/Get", {"id": model_id})).metadata.name
            except OpenAiError:  # it was deleted since, or is not this caller's to see
                names[model_id] = model_id
        return as_job(job, names[model_id], asked.caller.tenant_id)

    async def _model_id(self, asked: Asked, name: str, project_id: str) -> str:
        """By name in any project of the caller, its own first; or an id."""
        if name.startswith("inferencemodel-"):
            return name
        for project in sorted(asked.caller.grants, key=lambda project: (project != project_id, project)):
            try:
                request = {"parent_id": project, "name": name}
                return (await self._call(asked, f"{MODELS}/GetByName", request)).metadata.id
            except OpenAiError as error:
                if error.status not in (403, 404):
                    raise
        raise model_not_found(name)

    async def _check_file(self, asked: Asked, file_id: str, project_id: str, param: str) -> None:
        file = await asyncio.to_thread(self._files.find, file_id)
        if file is None or file.project_id != project_id:
            raise bad_request(f"There is no file {file_id!r} in the project {project_id}.", param=param)
        if file.purpose != "fine-tune":
            raise bad_request(
                f'The file has the purpose {file.purpose!r}; upload it with the purpose "fine-tune".',
                param=param,
            )
        require_turn()
        try:
            findings = await check("training", self._files.location(file))
        except CheckFailed as error:
            log.error("file %s: %s", file.id, error)
            message = (
                f"The file {file.name!r} cannot be validated: it needs too much memory or time. Split it."
            )
            raise bad_request(message, param=param, code="invalid_training_file") from error
        if findings.errors:
            shown = " ".join(error.message for error in findings.errors[:3])
            more = f" ({findings.total_errors} errors in total.)" if findings.total_errors > 3 else ""
            raise bad_request(
                f"The file {file.name!r}: {shown}{more}", param=param, code="invalid_training_file"
            )

    async def _all(self, asked: Asked, path: str, request: Mapping[str, Any]) -> Sequence[Any]:
        found = []
        token = ""
        while True:
            answer = await self._call(asked, path, {**request, "page_size": PAGE_SIZE, "page_token": token})
            found.extend(answer.items)
            token = answer.next_page_token
            if not token:
                return found

    async def _call(self, asked: Asked, path: str, request: dict[str, Any]) -> Any:
        return await self._calls.call(asked.authorization, path, request, client=asked.client)


VERBS = {"cancel": "Cancel", "pause": "Pause", "resume": "Resume"}


def _no_job(job_id: str) -> OpenAiError:
    message = f"The fine-tuning job {job_id!r} does not exist or you do not have access to it."
    return OpenAiError(404, message, code="job_not_found", param="fine_tuning_job_id")
