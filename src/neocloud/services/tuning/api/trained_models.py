"""LineageService/ListTrainedModels: the models of a project that have seen a file.

A file is known by its name (an id, or the URL of an object) and by its bytes: what was trained on a copy of
it has seen it, too.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from neocloud.core import wire
from neocloud.core.service import Call, Method
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.neocloud.inference.v1 import Model
from neocloud.messages.neocloud.tuning.v1 import (
    FineTuningJobSpec,
    ListTrainedModelsRequest,
    ListTrainedModelsResponse,
    SeenFile,
    TrainedModel,
    TrainingRecord,
)
from neocloud.services.inference.types import MODEL
from neocloud.services.storage.public import SCHEME
from neocloud.services.tuning.api.lineage import READ_MODELS, SERVICE, Rights, rights_of, training_of
from neocloud.services.tuning.types import JOB, WORKING, JobState, read_record, seen_files

TRAINED, VALIDATED, BASE = "trained on", "validated on", "base"
_SHA256 = re.compile(r"(?:sha256:)?([0-9A-Fa-f]{64})")
_UNFINISHED = WORKING | {JobState.PAUSED}


@dataclass(frozen=True)
class _Wanted:
    names: frozenset[str]
    digests: frozenset[str]

    def includes(self, name: str, sha256: str) -> bool:
        return bool(name and name in self.names) or bool(sha256 and sha256 in self.digests)

    def any_of(self, files: Iterable[SeenFile]) -> bool:
        return any(self.includes(each.file, each.sha256) for each in files)


async def list_trained_models(call: Call, request: ListTrainedModelsRequest) -> ListTrainedModelsResponse:
    return await call.dependencies.store.read_long(
        lambda tx: _found(tx, rights_of(call, tx), request.parent_id, request.file)
    )


def _found(tx: Transaction, rights: Rights, project_id: str, file: str) -> ListTrainedModelsResponse:
    rows = [each for each in tx.list(MODEL, parent_id=project_id)[0] if each.deleted_at is None]
    trainings = {row.id: training_of(tx, row) for row in rows}
    jobs = [row for row in tx.list(JOB, parent_id=project_id)[0] if row.state in _UNFINISHED]
    known = [record for record, _ in trainings.values() if record is not None]
    known += [record for job in jobs if (record := read_record(tx, job.id)) is not None]
    wanted = _wanted(file, known)

    @cache
    def relation_of(model_id: str) -> tuple[str, str]:
        """Return how a model has seen the file, and the base through which; "" where it has not."""
        row = rights.get(model_id)
        if row is None or row.kind != MODEL or not rights.may_read(READ_MODELS, model_id):
            return "", ""
        record, _ = trainings[model_id] if model_id in trainings else training_of(tx, row)
        direct = _direct(wanted, record)
        if direct:
            return direct, ""
        base_id = wire.message(row, Model).spec.base_model_id or (record.base.id if record else "")
        base = rights.get(base_id)
        if base is not None and base_id != model_id and relation_of(base_id)[0]:
            return BASE, base.name
        if record is not None and wanted.any_of(record.base_files):
            return BASE, record.base.name
        return "", ""

    answer = ListTrainedModelsResponse()
    for row in rows:
        relation, base = relation_of(row.id)
        record, has_record = trainings[row.id]
        if relation:
            answer.items.append(_item(row, relation, base, record))
        elif record is not None and not (has_record and record.training_data.sha256):
            answer.has_unrecorded = True
    answer.job_ids.extend(job.id for job in jobs if _uses(tx, job, wanted))
    return answer


def _wanted(file: str, records: Sequence[TrainingRecord]) -> _Wanted:
    """Return the file by its names and digests. An object has several: it is overwritten. So its name stands
    for all of them, but no digest stands for its name."""
    seen = [each for record in records for each in seen_files(record)]
    if found := _SHA256.fullmatch(file):
        digest = found[1].lower()
        names = {each.file for each in seen if each.sha256 == digest and not each.file.startswith(SCHEME)}
        return _Wanted(frozenset(names), frozenset({digest}))
    digests = {each.sha256 for each in seen if each.file == file}
    return _Wanted(frozenset({file}), frozenset(digests - {""}))


def _direct(wanted: _Wanted, record: TrainingRecord | None) -> str:
    if record is None:
        return ""
    if wanted.includes(record.spec.training_file, record.training_data.sha256):
        return TRAINED
    is_validated = wanted.includes(record.spec.validation_file, record.validation_data.sha256)
    return VALIDATED if is_validated else ""


def _uses(tx: Transaction, job: Resource, wanted: _Wanted) -> bool:
    spec, record = FineTuningJobSpec.FromString(job.spec), read_record(tx, job.id) or TrainingRecord()
    return wanted.includes(spec.training_file, record.training_data.sha256) or wanted.includes(
        spec.validation_file, record.validation_data.sha256
    )


def _item(row: Resource, relation: str, base: str, record: TrainingRecord | None) -> TrainedModel:
    return TrainedModel(
        id=row.id,
        name=row.name,
        relation=relation,
        base_model=base,
        job_id=record.job_id if record is not None else "",
        digest=wire.message(row, Model).status.digest,
    )


METHODS = (
    Method(
        f"{SERVICE}/ListTrainedModels",
        list_trained_models,
        "tuning.fineTuningJobs.list",
        target=lambda request: request.parent_id,
    ),
)
