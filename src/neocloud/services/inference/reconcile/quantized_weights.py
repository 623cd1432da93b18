"""Make the weights of fewer bits that a deployment asks for, in a pod, and read how their quality compares.

The pod runs a recipe on the tenant's model, so what it leaves is hostile: its result is read bounded, and
each number is checked. The weights stay as long as the deployment.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from neocloud.core.osfiles import make_folder
from neocloud.core.reconcile.reconciler import POLL_SECONDS, Failed, RetryLater
from neocloud.core.training_data import recipes_folder
from neocloud.core.untrusted.files import Folder, UnsafePath, remove_tree
from neocloud.engines.base import Engine, PodPhase, Reference
from neocloud.messages.neocloud.inference.v1 import DeploymentSpec, WeightsQuality
from neocloud.services.compute.public import preset
from neocloud.services.inference.public import ModelFolders, WeightsGone
from neocloud.services.inference.reconcile.backends import last_lines
from neocloud.services.inference.reconcile.scope import DeploymentScope
from neocloud.services.inference.render import MODEL_FOLDER, RECIPE_POD, RecipeView, recipe_objects
from neocloud.services.inference.rules.memory import holds_original, replica_shape
from neocloud.services.inference.types import DeploymentReason

LEAST_PERCENT = 99.0
"""The least quality, in per cent of the original's, that is served without its owner's word."""
RESULT = "quality.json"
LARGEST_RESULT_BYTES = 64 << 10
LOG_LINES = 8
NO_COMPARISON = "its preset does not hold the original weights"

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class _Perplexity(msgspec.Struct, frozen=True):
    original: Annotated[float, msgspec.Meta(gt=0, le=1e12)]
    copy: Annotated[float, msgspec.Meta(gt=0, le=1e12)]


class _Questions(msgspec.Struct, frozen=True):
    original_right: Count
    still_right: Count


class _Result(msgspec.Struct, frozen=True):
    state: Literal["done", "not_run"]
    bytes: Count
    original_bytes: Count
    percent: Annotated[float, msgspec.Meta(ge=0, le=100)] = 0.0
    perplexity: _Perplexity | None = None
    questions: _Questions | None = None


class QuantizedWeights:
    def __init__(self, engine: Engine, folders: ModelFolders, image: Callable[[], str]) -> None:
        self._engine = engine
        self._folders = folders
        self._image = image

    async def ensure(self, scope: DeploymentScope) -> None:
        """Make the weights where they are missing, and set the scope's quality.

        Raises RetryLater while they are made, and Failed where they cannot be.
        """
        folder, name = self._folders.of_weights(scope.id), _namespace(scope.id)
        if scope.quality is not None and await asyncio.to_thread((folder / MODEL_FOLDER).is_dir):
            return
        scope.quality = None
        pod = (await self._engine.observe(name)).pod(RECIPE_POD)
        if pod is None:
            await asyncio.to_thread(_empty, folder)
            await self._engine.apply(recipe_objects(await self._view(scope, folder)))
        if pod is None or pod.phase not in (PodPhase.SUCCEEDED, PodPhase.FAILED):
            bits = _bits(scope.spec)
            raise RetryLater(f"the {bits} weights are made and compared", delay_seconds=2 * POLL_SECONDS)
        if pod.phase is PodPhase.FAILED:
            log = await last_lines(self._engine, Reference("Pod", name, RECIPE_POD), LOG_LINES)
            raise Failed(DeploymentReason.WEIGHTS_FAILED, _failure(scope, log or pod.message))
        try:
            scope.quality = await asyncio.to_thread(_read, folder)
        except (OSError, ValueError) as error:
            raise Failed(DeploymentReason.WEIGHTS_FAILED, _failure(scope, str(error))) from error
        await self._engine.remove([Reference("Namespace", name, name)])

    async def remove(self, deployment_id: str) -> None:
        """Remove everything that was made for a deployment."""
        name = _namespace(deployment_id)
        await self._engine.remove([Reference("Namespace", name, name)])
        folder = self._folders.of_weights(deployment_id)
        if await asyncio.to_thread(folder.is_dir):
            await asyncio.to_thread(remove_tree, folder)

    async def _view(self, scope: DeploymentScope, folder: Path) -> RecipeView:
        assert scope.model is not None
        shape = preset(scope.spec.platform, scope.spec.preset)
        try:
            weights, code = self._folders.locate_known(scope.model), recipes_folder()
        except WeightsGone as error:
            text = f"{scope.model.metadata.name}: {error}."
            raise Failed(DeploymentReason.MODEL_NOT_READY, text) from error
        except FileNotFoundError as error:
            raise Failed(DeploymentReason.WEIGHTS_FAILED, str(error)) from error
        try:
            image = self._image()
        except OSError as error:
            text = f"The shared root with the model server is not built ({error}). Run: neo image build jail"
            raise Failed(DeploymentReason.IMAGE_MISSING, text) from error
        fits = holds_original(scope.model.status, replica_shape(shape, await self._engine.capabilities()))
        return RecipeView(
            namespace=_namespace(scope.id),
            label=scope.deployment.metadata.name,
            image=image,
            code=code,
            result=folder,
            weights=weights.root,
            weights_path=weights.path,
            script="quantize.py",
            options=("--weights", _bits(scope.spec), *(() if fits else ("--no-comparison", NO_COMPARISON))),
            cpus=shape.vcpu,
            memory_mib=shape.memory_mib,
            gpus=shape.gpus,
            gpu_type=shape.gpu_type,
        )


def require_quality(scope: DeploymentScope) -> None:
    """Raise Failed where the weights are worse than the owner accepts."""
    quality = scope.quality
    if quality is None or scope.spec.accept_lower_quality:
        return
    if quality.is_compared and quality.percent >= LEAST_PERCENT:
        return
    found = (
        f"have {quality.percent:.1f} % of the original's quality"
        if quality.is_compared
        else "are not compared"
    )
    raise Failed(
        DeploymentReason.QUALITY_TOO_LOW,
        f"Its {_bits(scope.spec)} weights {found} ({quality.text}); {LEAST_PERCENT:g} % is needed. Delete it"
        " and deploy with the original weights, or serve it anyway:"
        f" neo inference deployment update {scope.deployment.metadata.name} --accept-lower-quality",
    )


def _namespace(deployment_id: str) -> str:
    return f"{deployment_id}-weights"


def _bits(spec: DeploymentSpec) -> str:
    return DeploymentSpec.Weights.Name(spec.weights).lower()


def _failure(scope: DeploymentScope, why: str) -> str:
    return (
        f"Its {_bits(scope.spec)} weights could not be made: {why}. Delete the deployment, and deploy with"
        " the original weights or a larger preset."
    )


def _empty(folder: Path) -> None:
    """Make the folder, empty: an earlier pod may have been stopped at any moment."""
    if folder.is_dir():
        remove_tree(folder)
    make_folder(folder.parent)
    make_folder(folder)


def _read(folder: Path) -> WeightsQuality:
    """Return what the pod found. Raises ValueError, OSError."""
    with Folder.open(folder) as opened:
        content = opened.read(RESULT, limit=LARGEST_RESULT_BYTES)
        state = opened.state(MODEL_FOLDER)
    if state is None:
        raise UnsafePath(folder / MODEL_FOLDER, "is missing")
    try:
        found = msgspec.json.decode(content, type=_Result)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"{RESULT} is not what the recipe writes: {error}") from error
    is_compared = found.state == "done" and found.perplexity is not None and found.questions is not None
    text = NO_COMPARISON
    if is_compared and found.perplexity is not None and found.questions is not None:
        asked = found.questions
        text = (
            f"perplexity {found.perplexity.original:.4g} to {found.perplexity.copy:.4g};"
            f" {asked.still_right} of {asked.original_right} answers still right"
        )
    return WeightsQuality(
        is_compared=is_compared,
        percent=found.percent if is_compared else 0.0,
        text=text,
        size_bytes=found.bytes,
        original_bytes=found.original_bytes,
    )
