"""FineTuningJobService and ModelService as far as the gateway asks them: rows in memory, no training.

As `CallerApi` in the test's process, and as gRPC services behind a gateway in a process of its own.
"""

from collections.abc import Mapping
from typing import Any

import grpc

from neocloud.core import contract
from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.openai_files.fine_tuning import JOBS, MODELS
from neocloud.testing.gateway import FakeControlPlane

TUNING = "neocloud.tuning.v1"
CALLS = {
    JOBS: ("Create", "Get", "List", "Cancel", "Pause", "Resume", "ListEvents", "ListCheckpoints"),
    MODELS: ("Get", "GetByName"),
}


class Jobs:
    """Jobs in the state that a verb names, with the token of a caller and the last request."""

    def __init__(self) -> None:
        self.jobs: dict[str, Any] = {}
        self.authorizations: set[str] = set()
        self.metadata: list[dict[str, str]] = []
        """Of all calls over gRPC."""

    async def call(
        self, authorization: str, path: str, request: Mapping[str, Any], *, client: str = ""
    ) -> Any:
        self.authorizations.add(authorization)
        try:
            return self.answer(path, contract.from_dict(contract.method(path).input, dict(request)))
        except LookupError as error:
            raise OpenAiError(404, str(error)) from error

    def answer(self, path: str, request: Any) -> Any:
        service, _, verb = path.rpartition("/")
        if service == MODELS:
            return self._model(request)
        if verb == "Create":
            return self._create(request)
        if verb == "List":
            items = [job for job in self.jobs.values() if job.metadata.parent_id == request.parent_id]
            return contract.message(f"{TUNING}.ListFineTuningJobsResponse")(items=items)
        job = self.jobs.get(request.id)
        if job is None:
            raise LookupError(f"there is no job {request.id}")
        if verb == "Get":
            return job
        if verb == "ListEvents":
            return _message("ListFineTuningEventsResponse", {"items": EVENTS})
        if verb == "ListCheckpoints":
            return _message("ListFineTuningCheckpointsResponse", {"items": CHECKPOINTS})
        job.status.MergeFrom(_message("FineTuningJobStatus", {"state": STATES[verb]}))
        return contract.message("nebius.common.v1.Operation")(resource_id=job.metadata.id)

    def _model(self, request: Any) -> Any:
        known = {"inferencemodel-bank": "bank"}
        if getattr(request, "name", "") == "bank" or getattr(request, "id", "") in known:
            content = {"metadata": {"id": "inferencemodel-bank", "name": "bank"}}
            return contract.from_dict(contract.message("neocloud.inference.v1.Model"), content)
        raise LookupError("there is no such model")

    def _create(self, request: Any) -> Any:
        number = len(self.jobs) + 1
        job = contract.message(f"{TUNING}.FineTuningJob")(metadata=request.metadata, spec=request.spec)
        job.metadata.id = f"finetuningjob-{number}"
        job.metadata.created_at.FromSeconds(1_800_000_000 + number)
        job.status.MergeFrom(_message("FineTuningJobStatus", {"state": "VALIDATING_FILES"}))
        self.jobs[job.metadata.id] = job
        return contract.message("nebius.common.v1.Operation")(resource_id=job.metadata.id)


class FakeTuningControlPlane(FakeControlPlane):
    """The gateway's control plane, with jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs = Jobs()

    def add_to(self, server: grpc.Server) -> None:
        super().add_to(server)
        for service, verbs in CALLS.items():
            methods = {verb: self._handler(f"{service}/{verb}") for verb in verbs}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))

    def _handler(self, path: str) -> Any:
        rpc = contract.method(path)

        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            metadata = {key: str(value) for key, value in context.invocation_metadata()}
            self.jobs.metadata.append(metadata)
            self.jobs.authorizations.add(metadata["authorization"])
            try:
                return self.jobs.answer(path, request)
            except LookupError as error:
                context.abort(grpc.StatusCode.NOT_FOUND, str(error))

        return grpc.unary_unary_rpc_method_handler(answer, rpc.input.FromString, rpc.output.SerializeToString)


STATES = {"Cancel": "CANCELLED", "Pause": "PAUSED", "Resume": "QUEUED"}
EVENTS = [
    {"id": "ftevent-1", "level": "info", "message": "Started", "created_at": "2026-11-21T10:00:00Z"},
    {
        **{"id": "ftevent-2", "level": "info", "type": "metrics", "message": "Step 10"},
        **{"data": '{"step": 10, "train_loss": 2.5}', "created_at": "2026-11-21T10:00:01Z"},
    },
]
CHECKPOINTS = [
    {"id": "ftckpt-2", "step_number": 20, "train_loss": 1.5, "valid_loss": 1.75},
    {"id": "ftckpt-1", "step_number": 10, "train_loss": 2.5},
]


def _message(name: str, content: dict[str, Any]) -> Any:
    return contract.from_dict(contract.message(f"{TUNING}.{name}"), content)
