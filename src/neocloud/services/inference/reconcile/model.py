"""Reconcile a model: fetch its weights, inspect them, report their properties, and delete fetched copies.

Weights are inspected once, since sources do not change. A folder that failed is inspected again from time to
time, since a user may fix it.
"""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from neocloud.core import wire
from neocloud.core.reconcile.background import BackgroundWork
from neocloud.core.reconcile.reconciler import (
    POLL_SECONDS,
    RETRY_SECONDS,
    Context,
    Failed,
    ReconcileResult,
    RetryLater,
    Step,
)
from neocloud.core.service import Dependencies
from neocloud.engines.base import Engine, Observation, PodPhase, Reference
from neocloud.messages.neocloud.inference.v1 import Model, ModelStatus, QualityTest
from neocloud.services.inference.public import (
    Location,
    ModelFolders,
    WeightsGone,
    weights_folder,
)
from neocloud.services.inference.reconcile.backends import last_lines
from neocloud.services.inference.reconcile.quality_test import QualityTests, wants_test
from neocloud.services.inference.reconcile.reader import ModelReader
from neocloud.services.inference.reconcile.weight_copies import NoRoom, WeightCopies
from neocloud.services.inference.reconcile.weights import BadWeights
from neocloud.services.inference.render import FETCH_POD, fetch_objects
from neocloud.services.inference.types import (
    DEPLOYMENT,
    MODEL,
    ModelReason,
    ModelState,
    is_withheld,
    namespace,
    users_namespace,
)
from neocloud.services.registry.public import CannotPull, ImagePulls, PullProblem
from neocloud.services.storage.public import AccessProblem, ObjectReads, Unreadable

StateEnum = ModelStatus.State

BAD_FOLDER_RESYNC_SECONDS = 30.0
MOST_COPIES = 4
"""Models that are copied from buckets and registries at the same time; each takes a thread of the control
plane."""


@dataclass
class ModelScope:
    context: Context
    model: Model
    users: dict[str, str] = field(default_factory=dict[str, str])
    """The kinds of the resources that use the model, by id."""
    inspected: ModelStatus | None = None
    """None until its folder was read."""
    quality: QualityTest | None = None
    """The test of its quality, as this run found it."""
    base_deployments: frozenset[str] = frozenset()
    """The deployments of the base of an adapter that this run has inspected: they load it."""

    @property
    def model_id(self) -> str:
        return self.model.metadata.id


class ModelReconciler:
    kind = MODEL

    def __init__(
        self,
        engine: Engine,
        folders: ModelFolders,
        reader: ModelReader,
        copies: WeightCopies,
        image: Callable[[], str],
        tests: QualityTests,
    ) -> None:
        self._engine = engine
        self._folders = folders
        self._reader = reader
        self._copies = copies
        self._image = image
        self._tests = tests
        self._copying = BackgroundWork[None](MOST_COPIES)

    @classmethod
    def of(cls, dependencies: Dependencies) -> "ModelReconciler":
        reader = dependencies.provided.get(ModelReader)
        folders = dependencies.provided.get(ModelFolders)
        provided = dependencies.provided
        copies = WeightCopies(folders, provided.get(ObjectReads), provided.get(ImagePulls))

        def image() -> str:
            return dependencies.settings.image("jail")

        tests = QualityTests(dependencies.engine, folders, image)
        return cls(dependencies.engine, folders, reader, copies, image, tests)

    async def scope(self, context: Context) -> ModelScope:
        scope = ModelScope(context, wire.resource_message(context.resource))
        scope.users = await _users_of(context, scope.model_id)
        return scope

    def steps(self, scope: ModelScope) -> Sequence[Step[ModelScope]]:
        if scope.model.status.digest:
            is_asked = self._reader.reads_files and wants_test(scope.model)
            return (Step("Ask its questions", self._ask),) if is_asked else ()
        copy = Step("Fetch the weights", self._copy)
        fetches = {
            "hub": (Step("Fetch the weights", self._fetch),),
            "object": (copy,),
            "artifact": (Step("Find the artifact", self._find_artifact), copy),
        }
        source = scope.model.spec.source.WhichOneof("source") or ""
        fetch = fetches.get(source, ()) if self._reader.reads_files else ()
        return (*fetch, Step("Inspect the weights", self._inspect))

    def delete_steps(self, scope: ModelScope) -> Sequence[Step[ModelScope]]:
        return (
            Step("Stop fetching", self._stop_fetching),
            Step("Delete its quality test", self._stop_asking),
            Step("Delete the copy", self._delete_copy),
        )

    def status(self, scope: ModelScope, result: ReconcileResult) -> ReconcileResult:
        status = ModelStatus()
        status.CopyFrom(scope.inspected or scope.model.status)
        state = _state(scope, result)
        status.state = StateEnum.Value(state)
        status.artifact_digest = scope.model.status.artifact_digest
        status.reconciling = not result.is_done
        is_tried_again = state is ModelState.ERROR and result.error is None
        status.message = scope.model.status.message if is_tried_again else result.message
        del status.adapter_ids[:], status.deployment_ids[:]
        status.adapter_ids.extend(each for each, kind in scope.users.items() if kind == MODEL)
        status.deployment_ids.extend(each for each, kind in scope.users.items() if kind == DEPLOYMENT)
        if scope.quality is not None:
            status.quality.CopyFrom(scope.quality)
        is_bad_folder = result.error is not None and not scope.model.spec.source.HasField("hub")
        resync = BAD_FOLDER_RESYNC_SECONDS if is_bad_folder else None
        if result.is_done and scope.inspected is not None and scope.model.spec.questions:
            resync = POLL_SECONDS  # it is READY, and is asked its questions
        shown = result.with_status(status, state, resync)
        return replace(shown, wakes=scope.base_deployments)

    async def _ask(self, scope: ModelScope) -> None:
        """Ask the questions; the model is READY meanwhile."""
        scope.quality = await self._tests.run(scope.context, scope.model)
        if scope.quality.state == QualityTest.RUNNING:
            raise RetryLater("its questions are asked", delay_seconds=2 * POLL_SECONDS)

    async def _stop_asking(self, scope: ModelScope) -> None:
        if scope.model.spec.questions:
            await self._tests.remove(scope.model_id)

    async def _fetch(self, scope: ModelScope) -> None:
        """Fetch the weights in a pod; files that are already there are not fetched again."""
        name = namespace(scope.model_id)
        target = self._folders.of_model(scope.model_id)
        await asyncio.to_thread(target.mkdir, parents=True, exist_ok=True)
        observed = await self._engine.observe(name)
        if _phase(observed) is None:
            await self._engine.apply(fetch_objects(name, self._image(), target, scope.model.spec.source.hub))
            observed = await self._engine.observe(name)
        if _phase(observed) is PodPhase.FAILED:
            log = await last_lines(self._engine, Reference("Pod", name, FETCH_POD), 5)
            hub = scope.model.spec.source.hub
            raise Failed(
                ModelReason.FETCH_FAILED,
                f"{hub.id} could not be fetched from the hub: {log or 'its pod ended'}. Check the id,"
                " and that this machine reaches the hub; or download it elsewhere and add the folder.",
            )
        if _phase(observed) is not PodPhase.SUCCEEDED:
            raise RetryLater("fetching from the hub", delay_seconds=2 * POLL_SECONDS)
        await self._engine.remove([Reference("Namespace", name, name)])

    async def _find_artifact(self, scope: ModelScope) -> None:
        """Look up what its tag is for. It stays that, also where a copy is interrupted and the tag moves."""
        if scope.model.status.artifact_digest:
            return
        try:
            scope.model.status.artifact_digest = await self._copies.artifact_digest(scope.model_id)
        except CannotPull as error:
            raise _refused(error) from error

    async def _copy(self, scope: ModelScope) -> None:
        """Copy the weights from a bucket or a registry."""
        try:
            is_going_on = self._copying.is_going_on(scope.model_id)
        except (Unreadable, CannotPull) as error:
            raise _refused(error) from error
        except NoRoom as error:
            raise RetryLater(str(error), delay_seconds=RETRY_SECONDS) from error
        if not is_going_on:
            if await self._copies.is_there(scope.model_id):
                return
            model = scope.model
            self._copying.start(scope.model_id, None, lambda: self._copies.copy(model))
        where = "bucket" if scope.model.spec.source.HasField("object") else "registry"
        raise RetryLater(f"copying from its {where}", delay_seconds=POLL_SECONDS)

    async def _inspect(self, scope: ModelScope) -> None:
        folder = await asyncio.to_thread(self._checked, scope.model, scope.model_id)
        base_folder = await self._base_folder(scope)
        try:
            inspected = await self._reader.read(folder, base_folder)
        except BadWeights as error:
            reason = ModelReason.DOES_NOT_FIT_BASE if base_folder else ModelReason.BAD_FOLDER
            raise Failed(reason, f"{error}.") from error
        await _refuse_withheld(scope, inspected.digest)
        scope.inspected = inspected
        if base_folder:
            users = await _users_of(scope.context, scope.model.spec.base_model_id)
            scope.base_deployments = frozenset(each for each, kind in users.items() if kind == DEPLOYMENT)

    def _checked(self, model: Model, model_id: str) -> Location:
        """Return the folder, with its links resolved. Raises Failed if the project may not read it."""
        folder = weights_folder(model, self._folders)
        if not self._reader.reads_files:
            return Location(folder)
        found = self._folders.locate(folder, project_id=model.metadata.parent_id, model_id=model_id)
        if found is None:
            raise Failed(
                ModelReason.BAD_FOLDER,
                f"{folder} is not in a folder that is open for models. Copy it with `neo model add`, or ask"
                " the operator to open its parent with --model-folder.",
            )
        return found

    async def _base_folder(self, scope: ModelScope) -> Location | None:
        base_id = scope.model.spec.base_model_id
        if not base_id:
            return None
        row = await scope.context.get(base_id)
        if row is None or row.state != ModelState.READY:
            raise RetryLater(f"its base {base_id} is not READY", delay_seconds=POLL_SECONDS)
        return await asyncio.to_thread(self._known, wire.resource_message(row))

    def _known(self, base: Model) -> Location:
        if not self._reader.reads_files:
            return Location(weights_folder(base, self._folders))
        try:
            return self._folders.locate_known(base)
        except WeightsGone as error:
            raise Failed(ModelReason.BAD_FOLDER, f"Its base: {error}.") from error

    async def _stop_fetching(self, scope: ModelScope) -> None:
        self._copying.cancel(scope.model_id)
        name = namespace(scope.model_id)
        if scope.model.spec.source.HasField("hub"):
            await self._engine.remove([Reference("Namespace", name, name)])

    async def _delete_copy(self, scope: ModelScope) -> None:
        """Delete the folder if the cloud made it and no other model uses it."""
        folder = weights_folder(scope.model, self._folders)
        project_id = scope.model.metadata.parent_id
        if not self._folders.is_copy(folder, project_id=project_id, model_id=scope.model_id):
            return
        for row in await scope.context.list(MODEL, project_id):
            other = wire.resource_message(row)
            if row.id != scope.model_id and weights_folder(other, self._folders).is_relative_to(folder):
                return
        if not folder.is_symlink():
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


async def _refuse_withheld(scope: ModelScope, digest: str) -> None:
    """Raise Failed if these are the weights of another model of the tenant that failed a gate."""
    context, project_id = scope.context, scope.model.metadata.parent_id
    tenants: dict[str, str] = {}
    for row in await context.list(MODEL):
        other: Model = wire.resource_message(row)
        if row.id == scope.model_id or other.status.digest != digest or not is_withheld(other.spec):
            continue
        for project in (project_id, row.parent_id):
            found = await context.get(project)
            tenants[project] = found.parent_id if found is not None else project
        if tenants[project_id] == tenants[row.parent_id]:
            raise Failed(
                ModelReason.WITHHELD,
                f"These are the weights of {row.name}, which failed the gate of {other.spec.withheld_by}:"
                " override that gate (`neo model override-gate`), or train a better model.",
            )


def _refused(error: Unreadable | CannotPull) -> Exception:
    if error.problem in (AccessProblem.UNANSWERED, PullProblem.UNANSWERED):
        return RetryLater(str(error), delay_seconds=RETRY_SECONDS)
    return Failed(ModelReason.FETCH_FAILED, str(error))


async def _users_of(context: Context, model_id: str) -> dict[str, str]:
    """Return the kinds of the resources that use a model, by id."""
    users: dict[str, str] = {}
    for user_id in sorted(await context.reservations(users_namespace(model_id))):
        row = await context.get(user_id)
        if row is not None and row.deleted_at is None:
            users[user_id] = row.kind
    return users


def _state(scope: ModelScope, result: ReconcileResult) -> ModelState:
    if scope.context.resource.deleted_at:
        return ModelState.DELETING
    # A failed model is in error until another try has succeeded.
    was_in_error = scope.model.status.state == StateEnum.ERROR
    if result.error or (was_in_error and not result.is_done):
        return ModelState.ERROR
    return ModelState.READY if result.is_done or scope.model.status.digest else ModelState.CREATING


def _phase(observed: Observation) -> PodPhase | None:
    pod = observed.pod(FETCH_POD)
    return pod.phase if pod else None
