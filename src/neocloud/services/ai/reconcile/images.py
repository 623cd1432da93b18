"""The images of registries that workloads run: found, pulled beside the runs of the reconciler, and removed.

A run only looks whether a pull is done: one takes minutes, and runs are few. Each tenant may pull a few
images at a time, so that slow pulls of one do not hold up those of others. Which images are needed is
reserved in the store, by each workload that runs or is to run; unreserved images are removed.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from neocloud.core.reconcile.background import BackgroundWork
from neocloud.core.reconcile.reconciler import POLL_SECONDS, RETRY_SECONDS, Context, Failed, RetryLater
from neocloud.core.service import Dependencies
from neocloud.engines.base import EngineError
from neocloud.engines.images import ImagePull, ImageTooLarge
from neocloud.services.ai.reconcile.scope import WorkloadScope
from neocloud.services.ai.rules import disk_bytes
from neocloud.services.ai.types import Reason
from neocloud.services.compute.types import GIB
from neocloud.services.registry.public import CannotPull, ImagePulls, PullProblem

logger = logging.getLogger(__name__)

LARGEST_IMAGE_BYTES = 100 * GIB
"""Disk space of an image, where the disk of its workload is larger."""
PULL_SECONDS = 1800.0
MOST_AT_A_TIME = 8
MOST_OF_A_TENANT = 2
_NAMESPACE = "ai-images"
"""Namespace of reservations "WORKLOAD IMAGE"."""
_REASONS = {
    PullProblem.MISSING: Reason.IMAGE_MISSING,
    PullProblem.FORBIDDEN: Reason.IMAGE_FORBIDDEN,
    PullProblem.UNUSABLE: Reason.IMAGE_UNUSABLE,
    PullProblem.TOO_LARGE: Reason.IMAGE_TOO_LARGE,
}


_FOR_GOOD = frozenset({PullProblem.UNUSABLE, PullProblem.TOO_LARGE})
"""Problems that pulling the same image again does not change."""
LONGEST_PAUSE_SECONDS = 300.0


@dataclass
class _Work:
    """The work for one workload, in one round."""

    what: str
    result: str = ""
    failures: int = 0
    error: Failed | None = None
    """Why it will not be tried again in this round."""


class WorkloadImages:
    def __init__(self, dependencies: Dependencies) -> None:
        self._engine = dependencies.engine
        self._provided = dependencies.provided
        self._work: dict[str, _Work] = {}
        """Work by workload."""
        self._running = BackgroundWork[None](None)
        self._room = asyncio.Semaphore(MOST_AT_A_TIME)
        self._rooms: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(MOST_OF_A_TENANT)
        )

    async def is_of_registry(self, scope: WorkloadScope) -> bool:
        pulls = self._provided.find(ImagePulls)
        return pulls is not None and await pulls.image_of(scope.id) is not None

    async def digest(self, scope: WorkloadScope) -> str:
        """Return the digest that this round runs. Raises RetryLater while it is asked for, and Failed."""
        if scope.runtime.image_digest:
            return scope.runtime.image_digest
        pulls = self._provided.get(ImagePulls)
        what = f"{scope.runtime.round} digest"
        return await self._beside(scope, what, lambda: pulls.digest(scope.id), "is looked up")

    async def require(self, scope: WorkloadScope) -> None:
        """Have the image of this digest here. Raises RetryLater while it is pulled, and Failed."""
        await _reserve(scope.context, f"{scope.id} {scope.image}")
        if scope.image in await self._engine.pulled_images():
            return
        project = await scope.context.get(scope.message.metadata.parent_id)
        tenant = project.parent_id if project is not None else ""
        what = f"{scope.runtime.round} {scope.image}"
        await self._beside(scope, what, lambda: self._pull(scope, tenant), "is being pulled")

    def cancel(self, workload_id: str) -> None:
        self._work.pop(workload_id, None)
        self._running.cancel(workload_id)

    async def release(self, scope: WorkloadScope) -> None:
        """Let its image go first, and then remove those that no workload needs: of two that end together, the
        later one finds that nobody needs it."""
        held = await scope.context.reservations(_NAMESPACE)
        mine = [value for value, holder in held.items() if holder == scope.id]
        if not mine and not scope.runtime.image_digest:
            return
        for value in mine:
            await scope.context.release(_NAMESPACE, value)
        own = {scope.image, *map(_image_in, mine)}
        needed = set(map(_image_in, await scope.context.reservations(_NAMESPACE)))
        for image in await self._engine.pulled_images() - needed:
            try:
                await self._engine.remove_image(image)
            except EngineError as error:
                if image in own:
                    why = f"its image is not removed yet: {error}"
                    raise RetryLater(why, delay_seconds=RETRY_SECONDS) from error
                logger.warning("Image %s is not removed yet: %s", image, error)

    async def _pull(self, scope: WorkloadScope, tenant: str) -> str:
        pulls = self._provided.get(ImagePulls)
        size = min(disk_bytes(scope.spec), LARGEST_IMAGE_BYTES)
        async with self._rooms[tenant], self._room:
            found = await pulls.find(scope.id, scope.runtime.image_digest, size)
            program = (*found.settings.entrypoint, *found.settings.command, scope.spec.args)
            if not scope.spec.container_command and not any(program):
                raise CannotPull(
                    PullProblem.UNUSABLE, "The image names no program; give one in spec.container_command."
                )
            await self._engine.pull_image(
                ImagePull(
                    image=scope.image,
                    source=found.source,
                    username=found.username,
                    password=found.password,
                    settings=found.settings,
                    size_bytes=size,
                    timeout_seconds=PULL_SECONDS,
                )
            )
        return scope.image

    async def _beside(
        self, scope: WorkloadScope, what: str, work: Callable[[], Awaitable[str]], doing: str
    ) -> str:
        """Return the result of work that is done beside the runs. Raises RetryLater until it is there."""
        found = self._work.get(scope.id)
        if found is None or found.what != what:
            self.cancel(scope.id)
            self._work[scope.id] = found = _Work(what)
        if found.error is not None:
            raise found.error
        if self._running.find(scope.id) is None:
            self._running.start(scope.id, None, partial(_keep_result, found, work))
        try:
            is_going_on = self._running.is_going_on(scope.id)
        except CannotPull as error:
            if error.problem not in _REASONS:
                raise self._later(found, str(error)) from error
            failed = Failed(_REASONS[error.problem], str(error))
            found.error = failed if error.problem in _FOR_GOOD else None
            raise failed from error
        except ImageTooLarge as error:
            advice = f"Choose a larger disk (spec.disk.size_bytes), up to {LARGEST_IMAGE_BYTES // GIB} GiB."
            found.error = Failed(Reason.IMAGE_TOO_LARGE, f"{error} {advice}")
            raise found.error from error
        except EngineError as error:
            raise self._later(found, f"the image is not pulled yet: {error}") from error
        if is_going_on:
            raise RetryLater(f"the image {scope.spec.image} {doing}", delay_seconds=POLL_SECONDS)
        return found.result

    def _later(self, work: _Work, why: str) -> RetryLater:
        """Return the order to try again after a pause that grows."""
        pause = min(RETRY_SECONDS * 2**work.failures, LONGEST_PAUSE_SECONDS)
        work.failures += 1
        return RetryLater(why, delay_seconds=pause)


async def _keep_result(found: _Work, work: Callable[[], Awaitable[str]]) -> None:
    found.result = await work()


def _image_in(value: str) -> str:
    """Return the image that a reservation names."""
    return value.partition(" ")[2]


async def _reserve(context: Context, value: str) -> None:
    """Reserve what a workload needs, in place of what it needed in an earlier round."""
    held = await context.reserve(_NAMESPACE, [value])
    if held is not None and held != value:
        await context.release(_NAMESPACE, held)
        await context.reserve(_NAMESPACE, [value])
