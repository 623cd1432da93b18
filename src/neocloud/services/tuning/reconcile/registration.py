"""What a finished job leaves in the project: the new model, and its result files. May be repeated."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from neocloud.core.reconcile.reconciler import Failed
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.neocloud.inference.v1 import ModelSpec
from neocloud.services.inference.types import MODEL
from neocloud.services.tuning.public import Files
from neocloud.services.tuning.reconcile.scope import Scope
from neocloud.services.tuning.reconcile.workspace import model_folders
from neocloud.services.tuning.types import JOB, RESULT_PURPOSE, Reason, model_name, result_file_id
from neocloud.services.tuning.work_folder import BadResult

Result = TypeVar("Result")
JOB_LABEL = "neocloud.dev/fine-tuning-job"
RESULTS = {"step_metrics.csv": "metrics.csv", "evaluation.json": "report.json"}
"""Name of a result file to the name in the job's folder; the evaluation is the last."""


async def keep_results(dependencies: Dependencies, scope: Scope) -> None:
    files, kept = dependencies.provided.get(Files), []
    for name, source in RESULTS.items():
        file_id = result_file_id(scope.job_id, name)
        kept.append(await _taken(partial(_keep, files, scope, source, name, file_id)))
    scope.result_files = tuple(kept)


async def register_model(dependencies: Dependencies, scope: Scope, base: Any) -> None:
    """The model is a row of its own: it stays when the job is deleted."""
    project_id = scope.job.metadata.parent_id
    target = model_folders(dependencies).of_project(project_id) / scope.job_id
    await _taken(lambda: scope.folder.copy_result(target))
    name = model_name(base.metadata.name, scope.job.spec.suffix, scope.job_id)
    spec = _spec(scope.job, base, target)
    found = await scope.context.find(MODEL, project_id, name)
    if found is None or found.owner_id == scope.job_id:
        labels = {JOB_LABEL: scope.job_id}
        found = await scope.context.ensure_child(
            MODEL, name=name, parent_id=project_id, spec=spec, labels=labels
        )
        await dependencies.store.write(lambda tx: _let_go(tx, found))
    scope.model_id, scope.model_name = found.id, found.name
    if not scope.job.status.fine_tuned_model_id:
        scope.folder.tell(scope.context.now.timestamp(), f"New fine-tuned model created: {name}.")


def _spec(job: Any, base: Any, folder: Path) -> Any:
    spec = ModelSpec(
        license=base.spec.license,
        description=f"Fine-tuned from {base.metadata.name} by {job.metadata.id}.",
        tool_call_parser=base.spec.tool_call_parser,
        reasoning_parser=base.spec.reasoning_parser,
    )
    spec.source.folder = str(folder)
    if not job.spec.merge:
        spec.base_model_id = base.metadata.id
    return spec


def _let_go(tx: Transaction, model: Resource) -> None:
    row = tx.get(model.id)
    owner = tx.get(row.owner_id) if row is not None and row.owner_id else None
    if row is not None and owner is not None and owner.kind == JOB:
        tx.update(replace(row, owner_id=""))


def _keep(files: Files, scope: Scope, source: str, name: str, file_id: str) -> str:
    with scope.folder.result_file(source) as path:
        return files.add(scope.job.metadata.parent_id, path, RESULT_PURPOSE, name, file_id)


async def _taken(take: Callable[[], Result]) -> Result:
    """What the container left is not trusted: a link or a device in its place ends the job."""
    try:
        return await asyncio.to_thread(take)
    except BadResult as error:
        raise Failed(Reason.BAD_RESULT, f"The job's result was refused: {error}.") from error
