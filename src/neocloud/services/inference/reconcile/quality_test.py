"""Ask a model that was added the questions of its spec, in a pod, and count the right answers.

The model is READY meanwhile: the test tells its owner what it is worth, and withholds nothing. The pod loads
a tenant's model, so its answers are hostile: bounded, and only ever texts.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from neocloud.core import contract, wire
from neocloud.core.known_answers import is_right
from neocloud.core.osfiles import make_folder, write_file
from neocloud.core.reconcile.reconciler import POLL_SECONDS, Context, RetryLater
from neocloud.core.training_data import recipes_folder
from neocloud.core.untrusted.files import Folder, remove_tree
from neocloud.engines.base import Engine, PodPhase, Reference
from neocloud.messages.neocloud.inference.v1 import (
    Model,
    QualityQuestion,
    QualityTest,
    WrongAnswer,
)
from neocloud.services.inference.public import ModelFolders, WeightsGone
from neocloud.services.inference.reconcile.backends import last_lines
from neocloud.services.inference.render import RECIPE_POD, RecipeView, recipe_objects
from neocloud.services.inference.types import MODEL

QUESTIONS, ANSWERS = "questions.json", "answers.json"
LARGEST_ANSWERS_BYTES = 256 << 10
LONGEST_ANSWER = 300
"""Characters of a wrong answer that are kept."""
LARGEST_MODEL_BYTES = 8 << 30
"""A larger model takes long on a CPU; it is asked when it is deployed."""
CPUS = 2
LIBRARIES_MIB = 2048
MOST_AT_A_TIME = 2
LONGEST = timedelta(minutes=15)
READABLE = 0o644


def wants_test(model: Model) -> bool:
    """Return whether the questions of a whole model are still to be asked."""
    is_asked = model.status.quality.state in (QualityTest.DONE, QualityTest.NOT_RUN)
    return bool(model.spec.questions) and not model.spec.base_model_id and not is_asked


def judge(questions: Sequence[QualityQuestion], answers: Sequence[str]) -> tuple[int, list[WrongAnswer]]:
    """Return how many answers are right, and the others."""
    wrong = [
        WrongAnswer(question=asked.question, answer=said[:LONGEST_ANSWER])
        for asked, said in zip(questions, answers, strict=True)
        if not is_right(said, asked.answers)
    ]
    return len(questions) - len(wrong), wrong


class QualityTests:
    def __init__(self, engine: Engine, folders: ModelFolders, image: Callable[[], str]) -> None:
        self._engine = engine
        self._folders = folders
        self._image = image

    async def run(self, context: Context, model: Model) -> QualityTest:
        """Return the test, RUNNING until the pod has ended."""
        old, name = model.status.quality, _namespace(model.metadata.id)
        if model.status.size_bytes > LARGEST_MODEL_BYTES:
            return _not_run(context.now, "it has more than 8 GiB; deploy it, then: neo model verify")
        pod = (await self._engine.observe(name)).pod(RECIPE_POD)
        if pod is None:
            if await _others(context, model.metadata.id) >= MOST_AT_A_TIME:
                raise RetryLater("other models are asked first", delay_seconds=10 * POLL_SECONDS)
            return await self._start(context, model)
        is_late = old.HasField("started_at") and context.now - contract.to_datetime(old.started_at) > LONGEST
        if pod.phase not in (PodPhase.SUCCEEDED, PodPhase.FAILED) and not is_late:
            return _running(old)
        test = await self._ended(context, model, pod.phase)
        await self.remove(model.metadata.id)
        return test

    async def remove(self, model_id: str) -> None:
        """Remove everything that was made for the test of a model."""
        name, folder = _namespace(model_id), self._folders.of_weights(model_id)
        await self._engine.remove([Reference("Namespace", name, name)])
        if await asyncio.to_thread(folder.is_dir):
            await asyncio.to_thread(remove_tree, folder)

    async def _start(self, context: Context, model: Model) -> QualityTest:
        model_id, folder = model.metadata.id, self._folders.of_weights(model.metadata.id)
        try:
            weights, code, image = self._folders.locate_known(model), recipes_folder(), self._image()
        except (WeightsGone, OSError) as error:
            return _not_run(context.now, str(error))
        await asyncio.to_thread(_prepare, folder, [each.question for each in model.spec.questions])
        view = RecipeView(
            namespace=_namespace(model_id),
            label=model_id,
            image=image,
            code=code,
            result=folder,
            weights=weights.root,
            weights_path=weights.path,
            script="ask_questions.py",
            options=(),
            cpus=CPUS,
            memory_mib=LIBRARIES_MIB + (model.status.size_bytes >> 20) * 2,
        )
        await self._engine.apply(recipe_objects(view))
        started = QualityTest()
        started.started_at.FromDatetime(context.now)
        return _running(started)

    async def _ended(self, context: Context, model: Model, phase: PodPhase) -> QualityTest:
        name = _namespace(model.metadata.id)
        if phase is not PodPhase.SUCCEEDED:
            log = await last_lines(self._engine, Reference("Pod", name, RECIPE_POD), 3)
            late = f"it took longer than {LONGEST.total_seconds() / 60:.0f} minutes"
            return _not_run(context.now, (log or "its pod ended") if phase is PodPhase.FAILED else late)
        questions = model.spec.questions
        try:
            answers = await asyncio.to_thread(
                _read, self._folders.of_weights(model.metadata.id), len(questions)
            )
        except (OSError, ValueError) as error:
            return _not_run(context.now, str(error))
        right, wrong = judge(questions, answers)
        test = QualityTest(state=QualityTest.DONE, asked=len(questions), right=right, wrong=wrong)
        test.ended_at.FromDatetime(context.now)
        return test


def _namespace(model_id: str) -> str:
    return f"{model_id}-quality"


def _running(old: QualityTest) -> QualityTest:
    test = QualityTest(state=QualityTest.RUNNING)
    if old.HasField("started_at"):
        test.started_at.CopyFrom(old.started_at)
    return test


def _not_run(now: datetime, why: str) -> QualityTest:
    test = QualityTest(state=QualityTest.NOT_RUN, message=why[:LONGEST_ANSWER])
    test.ended_at.FromDatetime(now)
    return test


async def _others(context: Context, model_id: str) -> int:
    """Return how many other models are asked now."""
    models: list[Model] = [
        wire.resource_message(row)
        for row in await context.list(MODEL)
        if row.id != model_id and not row.deleted_at
    ]
    return sum(each.status.quality.state == QualityTest.RUNNING for each in models)


def _prepare(folder: Path, questions: Sequence[str]) -> None:
    """Make the folder with the questions; an earlier pod may have been stopped at any moment."""
    if folder.is_dir():
        remove_tree(folder)
    make_folder(folder.parent)
    make_folder(folder)
    write_file(folder / QUESTIONS, json.dumps(list(questions)), READABLE)


def _read(folder: Path, count: int) -> list[str]:
    """Return the answers. Raises ValueError for anything but so many texts; OSError."""
    with Folder.open(folder) as opened:
        content = opened.read(ANSWERS, limit=LARGEST_ANSWERS_BYTES)
    try:
        answers = msgspec.json.decode(content, type=list[str])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"{ANSWERS} is not what the recipe writes: {error}") from error
    if len(answers) != count:
        raise ValueError(f"{ANSWERS} has {len(answers)} answers to {count} questions")
    return answers
