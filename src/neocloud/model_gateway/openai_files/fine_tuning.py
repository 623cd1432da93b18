"""/v1/fine_tuning/jobs: OpenAI's form of neocloud.tuning.v1.FineTuningJobService, called with the token of
the caller.

The training file is validated line by line before a job is created.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import Message
from starlette.routing import Route

from neocloud.core.contract.json_codec import JsonObject
from neocloud.messages.neocloud.tuning.v1 import (
    Evaluation,
    FineTuningCheckpoint,
    FineTuningEvent,
    FineTuningJob,
    FineTuningJobSpec,
    FineTuningJobStatus,
    GateVerdict,
    Hyperparameters,
    JobError,
)
from neocloud.model_gateway.api.errors import OpenAiError, bad_request, model_not_found
from neocloud.model_gateway.control_plane import CallerApi
from neocloud.model_gateway.openai_files.files import FileStore
from neocloud.model_gateway.openai_files.handlers import (
    ApiRequest,
    CallerAuthenticator,
    Handler,
    list_response,
    page_of,
    read_page,
    route,
    text,
)
from neocloud.model_gateway.openai_files.tuning_spec import METHODS, job_spec, method_of
from neocloud.model_gateway.openai_files.validation import (
    ValidationCrashed,
    require_validation_slot,
    validate_file,
)


def as_job(job: FineTuningJob, model: str, tenant_id: str) -> dict[str, object]:
    """Return a job in OpenAI's form. `model` is the name of the base model."""
    status, spec = job.status, job.spec
    used = _used(status.hyperparameters if status.HasField("hyperparameters") else spec.hyperparameters)
    return {
        "id": job.metadata.id,
        "object": "fine_tuning.job",
        "created_at": _seconds(job.metadata, "created_at") or 0,
        "started_at": _seconds(status, "started_at"),
        "finished_at": _seconds(status, "finished_at"),
        "estimated_finish": _seconds(status, "estimated_finish"),
        "model": model,
        "fine_tuned_model": status.fine_tuned_model or None,
        "organization_id": tenant_id,
        "status": _job_state(job),
        "training_file": spec.training_file,
        "validation_file": spec.validation_file or None,
        "hyperparameters": {
            "n_epochs": "auto",
            "batch_size": "auto",
            "learning_rate_multiplier": "auto",
            **used,
        },
        "method": _method(spec, used),
        "result_files": list(status.result_files),
        "trained_tokens": status.trained_tokens or None,
        "seed": spec.seed,
        "user_provided_suffix": spec.suffix or None,
        "integrations": [],
        "metadata": dict(spec.job_metadata) or None,
        "error": _job_error(status.error) if status.HasField("error") else None,
        "warnings": list(status.warnings),
        "evaluation": _evaluation(status.evaluation) if status.HasField("evaluation") else None,
        "gate": _gate(status.gate) if status.HasField("gate") else None,
        "step": status.step,
        "total_steps": status.total_steps,
    }


def _method(spec: FineTuningJobSpec, used: dict[str, object]) -> dict[str, object]:
    kind = NAMES[spec.method]
    grader = {"grader": json.loads(spec.grader)} if spec.grader else {}
    return {"type": kind, kind: {"hyperparameters": used, **grader}}


def _job_state(job: FineTuningJob) -> str:
    name = FineTuningJobStatus.State.Name(job.status.state)
    return {"STATE_UNSPECIFIED": "validating_files", "DELETING": "cancelled"}.get(name) or name.lower()


def _used(hyperparameters: Hyperparameters) -> dict[str, object]:
    return {field.name: value for field, value in hyperparameters.ListFields()}


def _job_error(error: JobError) -> dict[str, object]:
    return {"code": error.code, "message": error.message, "param": error.param or None}


def _gate(verdict: GateVerdict) -> dict[str, object]:
    return {"passed": verdict.passed, "rules": [_plain(rule) for rule in verdict.rules]}


def _evaluation(evaluation: Evaluation) -> dict[str, object]:
    """Return what was measured: rewards in place of perplexities where a grader scored answers."""
    has_rewards = evaluation.HasField("base_reward")
    kind = "reward" if has_rewards else "perplexity"
    measured = _plain(evaluation)
    return {name: value for name, value in measured.items() if kind in name or name == "conversations"}


def _plain(message: Message) -> dict[str, object]:
    return {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}


def _seconds(message: Message, name: str) -> int | None:
    return getattr(message, name).seconds if message.HasField(name) else None


def as_event(event: FineTuningEvent) -> dict[str, object]:
    return {
        "id": event.id,
        "object": "fine_tuning.job.event",
        "created_at": event.created_at.seconds,
        "level": event.level,
        "message": event.message,
        "type": event.type or "message",
        "data": json.loads(event.data) if event.data else None,
    }


def as_checkpoint(checkpoint: FineTuningCheckpoint, job: FineTuningJob) -> dict[str, object]:
    metrics = {"step": checkpoint.step_number, "train_loss": checkpoint.train_loss}
    if checkpoint.HasField("valid_loss"):
        metrics["valid_loss"] = checkpoint.valid_loss
    name = job.status.fine_tuned_model or job.metadata.id
    return {
        "id": checkpoint.id,
        "object": "fine_tuning.job.checkpoint",
        "created_at": checkpoint.created_at.seconds,
        "fine_tuned_model_checkpoint": f"{name}:step-{checkpoint.step_number}",
        "fine_tuning_job_id": job.metadata.id,
        "step_number": checkpoint.step_number,
        "metrics": metrics,
    }


NAMES = {FineTuningJobSpec.Method.Value(each): name for name, each in METHODS.items()} | {0: "supervised"}
logger = logging.getLogger(__name__)
PERMISSION = "tuning.fineTuningJobs"
JOBS = "neocloud.tuning.v1.FineTuningJobService"
MODELS = "neocloud.inference.v1.ModelService"
PAGE_SIZE = 1000


class TuningApi:
    def __init__(self, files: FileStore, calls: CallerApi) -> None:
        self._files = files
        self._calls = calls

    def routes(self, callers: CallerAuthenticator) -> list[Route]:
        job = "/v1/fine_tuning/jobs/{job_id}"
        return [
            route("POST", "/v1/fine_tuning/jobs", self.create, callers),
            route("GET", "/v1/fine_tuning/jobs", self.list, callers),
            route("GET", job, self.get, callers),
            route("GET", f"{job}/events", self.events, callers),
            route("GET", f"{job}/checkpoints", self.checkpoints, callers),
            *(route("POST", f"{job}/{verb}", self._changing(verb), callers) for verb in VERBS),
        ]

    async def create(self, request: ApiRequest) -> dict[str, object]:
        body = await request.body()
        project_id = request.project(f"{PERMISSION}.create")
        spec = job_spec(body)
        model_id = await self._model_id(request, text(body, "model", required=True), project_id)
        for param in ("training_file", "validation_file"):
            # An object of a bucket is read by the job, which checks its lines.
            if (file_id := text(body, param)) and not file_id.startswith("s3://"):
                await self._check_file(request, file_id, project_id, param, spec)
        name = "-".join(filter(None, ("ft", text(body, "suffix"), secrets.token_hex(4))))
        message = {
            "metadata": {"parent_id": project_id, "name": name},
            "spec": {**spec, "model_id": model_id},
        }
        operation = await self._call(request, f"{JOBS}/Create", message)
        return await self._as_job(request, await self._job(request, operation.resource_id))

    async def list(self, request: ApiRequest) -> dict[str, object]:
        project_id = request.project(f"{PERMISSION}.list")
        query = request.http.query_params
        every = await self._all(request, f"{JOBS}/List", {"parent_id": project_id})
        required = {key[9:-1]: value for key, value in query.items() if key.startswith("metadata[")}
        jobs = [job for job in every if required.items() <= dict(job.spec.job_metadata).items()]
        jobs.sort(key=lambda job: (job.metadata.created_at.ToNanoseconds(), job.metadata.id), reverse=True)
        found, has_more = page_of(jobs, read_page(query, limit=20, most=100), lambda job: job.metadata.id)
        models: dict[str, str] = {}
        return list_response([await self._as_job(request, job, models) for job in found], has_more=has_more)

    async def get(self, request: ApiRequest) -> dict[str, object]:
        return await self._as_job(request, await self._job(request))

    async def events(self, request: ApiRequest) -> dict[str, object]:
        job = await self._job(request)
        events = await self._all(request, f"{JOBS}/ListEvents", {"id": job.metadata.id})
        page = read_page(request.http.query_params, limit=20, most=1000)
        found, has_more = page_of(events[::-1], page, lambda event: event.id)  # the newest first, as OpenAI's
        return list_response([as_event(event) for event in found], has_more=has_more)

    async def checkpoints(self, request: ApiRequest) -> dict[str, object]:
        job = await self._job(request)
        checkpoints = await self._all(request, f"{JOBS}/ListCheckpoints", {"id": job.metadata.id})
        page = read_page(request.http.query_params, limit=10, most=1000)
        found, has_more = page_of(checkpoints, page, lambda checkpoint: checkpoint.id)
        return list_response([as_checkpoint(each, job) for each in found], has_more=has_more)

    def _changing(self, verb: str) -> Handler:
        async def change(request: ApiRequest) -> dict[str, object]:
            job = await self._job(request)
            await self._call(request, f"{JOBS}/{VERBS[verb]}", {"id": job.metadata.id})
            return await self._as_job(request, await self._job(request))

        return change

    async def _job(self, request: ApiRequest, job_id: str = "") -> FineTuningJob:
        job_id = job_id or request.http.path_params["job_id"]
        try:
            job = await self._call(request, f"{JOBS}/Get", {"id": job_id})
        except OpenAiError as error:
            if error.status in (400, 403, 404):  # whether there is none or it is another's
                raise _no_job(job_id) from error
            raise
        if not request.sees(f"{PERMISSION}.get", job.metadata.parent_id):
            raise _no_job(job_id)
        return job

    async def _as_job(
        self, request: ApiRequest, job: FineTuningJob, models: dict[str, str] | None = None
    ) -> dict[str, object]:
        names = {} if models is None else models
        model_id = job.spec.model_id
        if model_id not in names:
            try:
                names[model_id] = (await self._call(request, f"{MODELS}/Get", {"id": model_id})).metadata.name
            except OpenAiError:  # it was deleted since, or is not this caller's to see
                names[model_id] = model_id
        return as_job(job, names[model_id], request.caller.tenant_id)

    async def _model_id(self, request: ApiRequest, name: str, project_id: str) -> str:
        """Find a model by name in any project of the caller, its own first, or by id."""
        if name.startswith("inferencemodel-"):
            return name
        for project in sorted(request.caller.grants, key=lambda project: (project != project_id, project)):
            try:
                message = {"parent_id": project, "name": name}
                return (await self._call(request, f"{MODELS}/GetByName", message)).metadata.id
            except OpenAiError as error:
                if error.status not in (403, 404):
                    raise
        raise model_not_found(name)

    async def _check_file(
        self, request: ApiRequest, file_id: str, project_id: str, param: str, spec: JsonObject
    ) -> None:
        file = await asyncio.to_thread(self._files.find, file_id)
        if file is None or file.project_id != project_id:
            raise bad_request(f"There is no file {file_id!r} in the project {project_id}.", param=param)
        if file.purpose != "fine-tune":
            raise bad_request(
                f'The file has the purpose {file.purpose!r}; upload it with the purpose "fine-tune".',
                param=param,
            )
        require_validation_slot()
        try:
            rows = {"method": method_of(spec), "grader": str(spec.get("grader", ""))}
            result = await validate_file("training", self._files.location(file), **rows)
        except ValidationCrashed as error:
            logger.error("Validation of file %s failed: %s", file.id, error)
            message = (
                f"The file {file.name!r} cannot be validated: it needs too much memory or time. Split it."
            )
            raise bad_request(message, param=param, code="invalid_training_file") from error
        if result.errors:
            shown = " ".join(error.message for error in result.errors[:3])
            more = f" ({result.total_errors} errors in total.)" if result.total_errors > 3 else ""
            raise bad_request(
                f"The file {file.name!r}: {shown}{more}", param=param, code="invalid_training_file"
            )

    async def _all(self, request: ApiRequest, path: str, message: Mapping[str, object]) -> Sequence[Any]:
        found: list[Any] = []
        token = ""
        while True:
            answer = await self._call(request, path, {**message, "page_size": PAGE_SIZE, "page_token": token})
            found.extend(answer.items)
            token = answer.next_page_token
            if not token:
                return found

    async def _call(self, request: ApiRequest, path: str, message: Mapping[str, object]) -> Any:
        return await self._calls.call(request.authorization, path, message, client=request.client)


VERBS = {"cancel": "Cancel", "pause": "Pause", "resume": "Resume"}


def _no_job(job_id: str) -> OpenAiError:
    message = f"The fine-tuning job {job_id!r} does not exist or you do not have access to it."
    return OpenAiError(404, message, code="job_not_found", param="fine_tuning_job_id")
