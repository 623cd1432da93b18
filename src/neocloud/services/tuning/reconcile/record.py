"""The record of a training: written while the job runs, and kept with the model that it made.

It is begun before the job's container first runs, so what it says of the data is the cloud's own knowledge;
`description` alone is what the job reported.
"""

import asyncio
import hashlib
import json

from neocloud.core.json_values import as_object
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Transaction
from neocloud.core.untrusted.files import Folder, UnsafePath
from neocloud.messages.neocloud.inference.v1 import Model
from neocloud.messages.neocloud.tuning.v1 import BaseModel, FileDigest, JobDescription, TrainingRecord
from neocloud.services.tuning.reconcile.scope import JobScope, verdict_message
from neocloud.services.tuning.rules.job_description import MOST_BYTES, read_description
from neocloud.services.tuning.rules.outcome import Success
from neocloud.services.tuning.types import read_record, seen_files, write_record
from neocloud.services.tuning.work_folder import WorkFolder

DESCRIPTION = "lineage.json"
MOST_BASE_FILES = 1000


async def begin_record(dependencies: Dependencies, scope: JobScope, base: Model) -> None:
    """Record data and base of a job whose first attempt has not begun; a container may change the files."""
    if scope.runtime.attempt > 1:
        return
    record = TrainingRecord(job_id=scope.job_id, base=_base(base))
    record.training_data.CopyFrom(await asyncio.to_thread(_digest, scope.folder, "training_file.jsonl"))
    if scope.job.spec.validation_file:
        found = await asyncio.to_thread(_digest, scope.folder, "validation_file.jsonl")
        record.validation_data.CopyFrom(found)
    await dependencies.store.write(lambda tx: write_record(tx, scope.job_id, record))


async def finish_record(dependencies: Dependencies, scope: JobScope, base: Model, model_id: str) -> None:
    """Keep the record with the model that the job made. A record that is there stays."""
    description = await asyncio.to_thread(_description, scope.folder)

    def write(tx: Transaction) -> None:
        if tx.get(model_id) is not None and read_record(tx, model_id) is None:
            begun = read_record(tx, scope.job_id) or TrainingRecord(base=_base(base))
            record = _finished(begun, scope, description)
            earlier = read_record(tx, record.base.id)
            record.base_files.extend(seen_files(earlier)[:MOST_BASE_FILES] if earlier is not None else ())
            write_record(tx, model_id, record)

    await dependencies.store.write(write)


def _finished(begun: TrainingRecord, scope: JobScope, description: JobDescription | None) -> TrainingRecord:
    status, outcome = scope.job.status, scope.outcome
    record = TrainingRecord(
        job_id=scope.job_id,
        job_name=scope.job.metadata.name,
        spec=scope.job.spec,
        hyperparameters=status.hyperparameters,
        created_at=scope.job.metadata.created_at,
        started_at=status.started_at if status.HasField("started_at") else None,
        finished_at=scope.context.now,
        attempts=scope.runtime.attempt,
        result_files=scope.result_files,
        description=description,
    )
    if isinstance(outcome, Success):
        record.trained_tokens = outcome.trained_tokens
        record.evaluation.CopyFrom(outcome.evaluation())
    if scope.verdict is not None:
        record.gate.CopyFrom(verdict_message(scope.verdict))
    record.MergeFrom(begun)
    return record


def _base(base: Model) -> BaseModel:
    return BaseModel(
        id=base.metadata.id, name=base.metadata.name, digest=base.status.digest, license=base.spec.license
    )


def _digest(work: WorkFolder, name: str) -> FileDigest:
    """Return what identifies a file with one conversation on each line. Raises OSError."""
    sha256, size, rows = hashlib.sha256(), 0, 0
    with Folder.open(work.path) as folder, folder.file(name) as file:
        for line in file:
            sha256.update(line)
            size, rows = size + len(line), rows + bool(line.strip())
    return FileDigest(sha256=sha256.hexdigest(), size_bytes=size, rows=rows)


def _description(work: WorkFolder) -> JobDescription | None:
    """Return what the job says of itself; None where it left nothing that recipes write."""
    try:
        with Folder.open(work.path) as folder:
            document: object = json.loads(folder.read(DESCRIPTION, limit=MOST_BYTES))
    except (UnsafePath, FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    return read_description(as_object(document))
