"""Turns for compilations: few at a time for a deployment, one for a caller.

A request waits for a turn where its deployment has not answered one with the same schemas yet. The turn ends
with the first bytes of the answer, or after the time that compiling may take by estimate: a caller who
leaves early keeps it until then, since model servers keep compiling. A caller whose schemas end in errors of
the model server waits before the next turn, longer each time.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Set
from dataclasses import dataclass, field

from neocloud.core.cleanup import undo_on_error
from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.compiled.reading import Compiled

MOST_AT_ONCE = 2
"""Compilations under way for a deployment."""
LIGHT_WEIGHT = 1_000
"""Limit of a light compilation. A heavier one has one of the turns at most: the other one is for those who
need it for seconds.
"""
MAX_WAITING = 256
MAX_WAITING_OF_CALLER = 16
WAIT_SECONDS = 60.0
BASE_SECONDS, SECONDS_OF_WEIGHT, MAX_SECONDS = 2.0, 0.01, 120.0
"""How long a turn lasts at most: compiling takes some 10 ms for each unit of weight with 150,000 tokens."""
COOLING_SECONDS = 5.0
"""A turn with an error lasts so much longer: the model server may have given up waiting, not compiling."""
PAUSE_SECONDS, MAX_PAUSE_SECONDS = 5.0, 600.0
"""A caller pauses after an error of the model server, twice as long after each further one."""
FORGOTTEN_AFTER_SECONDS = 3600.0
"""Errors of a caller are forgotten so long after the last one."""
KNOWN_WEIGHT, LEAST_WEIGHT = 50_000, 20
"""The schemas of a deployment that are remembered as compiled weigh no more than this together: about what
the cache of a model server holds."""

Wait = Callable[[Coroutine[None, None, None], float], Awaitable[None]]
"""Waits for something for at most so many seconds."""


@dataclass
class _Caller:
    last_turn: float = 0.0
    errors: int = 0
    pause_until: float = 0.0


@dataclass
class _Waiting:
    subject_id: str
    digest: bytes
    is_batch: bool
    number: int
    is_heavy: bool = False
    admitted: asyncio.Event = field(default_factory=asyncio.Event)
    has_turn: bool = False
    """It was admitted with a turn, and not because its schema became known."""


@dataclass
class _Deployment:
    running: set[str] = field(default_factory=set[str])
    """Callers with a turn."""
    heavy: set[str] = field(default_factory=set[str])
    """Callers whose turn may be a long one."""
    waiting: list[_Waiting] = field(default_factory=list[_Waiting])
    callers: dict[str, _Caller] = field(default_factory=dict[str, _Caller])
    known: OrderedDict[bytes, int] = field(default_factory=OrderedDict[bytes, int])
    """Weights of schemas that were answered, by digest."""
    known_weight: int = 0
    numbers: int = 0

    def caller(self, subject_id: str) -> _Caller:
        return self.callers.setdefault(subject_id, _Caller())

    def is_known(self, digest: bytes) -> bool:
        if digest in self.known:
            self.known.move_to_end(digest)
            return True
        return False

    def remember(self, compiled: Compiled) -> None:
        if self.is_known(compiled.digest):
            return
        weight = max(compiled.weight, LEAST_WEIGHT)
        self.known[compiled.digest] = weight
        self.known_weight += weight
        while self.known_weight > KNOWN_WEIGHT and len(self.known) > 1:
            self.known_weight -= self.known.popitem(last=False)[1]


class Turn:
    """A turn that was given. Ends once, by `answered`, by `unused` or by itself."""

    def __init__(
        self, turns: "CompilationTurns", deployment_id: str, subject_id: str, compiled: Compiled
    ) -> None:
        self._turns = turns
        self._deployment_id = deployment_id
        self._subject_id = subject_id
        self._compiled = compiled
        self._is_settled = False
        seconds = min(BASE_SECONDS + compiled.weight * SECONDS_OF_WEIGHT, MAX_SECONDS)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._ended, True)

    def answered(self, *, is_error: bool) -> None:
        """The model server has begun to answer, or failed to."""
        if self._is_settled:
            return
        self._is_settled = True
        self._turns.count(self._deployment_id, self._subject_id, is_error=is_error)
        if not self._timer.cancelled() and self._timer.when() > asyncio.get_running_loop().time():
            self._timer.cancel()
            if is_error:
                self._timer = asyncio.get_running_loop().call_later(COOLING_SECONDS, self._ended, False)
            else:
                self._ended(True)

    def unused(self) -> None:
        """The request was refused before it was sent."""
        if not self._is_settled:
            self._is_settled = True
            self._timer.cancel()
            self._ended(False)

    def _ended(self, is_compiled: bool) -> None:
        self._turns.end(self._deployment_id, self._subject_id, self._compiled if is_compiled else None)


class CompilationTurns:
    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._deployments: dict[str, _Deployment] = {}

    async def take(
        self, deployment_id: str, subject_id: str, compiled: Compiled | None, wait: Wait, *, is_batch: bool
    ) -> Turn | None:
        """Return a turn when it is this request's; None where it needs none.

        Raises OpenAiError 429 where others wait for too long or too many do, and what `wait` raises.
        """
        if compiled is None:
            return None
        deployment = self._deployments.setdefault(deployment_id, _Deployment())
        if deployment.is_known(compiled.digest):
            return None
        caller = deployment.caller(subject_id)
        pause = caller.pause_until - self._monotonic()
        if pause > WAIT_SECONDS:
            raise _paused(pause)
        self._require_room(deployment, subject_id)
        deployment.numbers += 1
        is_heavy = compiled.weight > LIGHT_WEIGHT
        place = _Waiting(subject_id, compiled.digest, is_batch, deployment.numbers, is_heavy)
        deployment.waiting.append(place)
        deadline = self._monotonic() + WAIT_SECONDS

        def release_place() -> None:
            if place in deployment.waiting:
                deployment.waiting.remove(place)
            elif place.has_turn:
                self._given_back(deployment, subject_id)

        with undo_on_error(release_place):
            while True:
                self._admit(deployment)
                if place.admitted.is_set():
                    break
                now = self._monotonic()
                if now >= deadline:
                    raise _too_many_wait()
                pause = caller.pause_until - now
                await wait(_set(place.admitted), min(deadline - now, pause if pause > 0 else WAIT_SECONDS))
        return Turn(self, deployment_id, subject_id, compiled) if place.has_turn else None

    def count(self, deployment_id: str, subject_id: str, *, is_error: bool) -> None:
        """Count how a turn of a caller was answered."""
        deployment = self._deployments.get(deployment_id)
        if deployment is None or not is_error:
            return
        caller, now = deployment.caller(subject_id), self._monotonic()
        if now - caller.pause_until > FORGOTTEN_AFTER_SECONDS:
            caller.errors = 0
        caller.pause_until = now + min(PAUSE_SECONDS * 2**caller.errors, MAX_PAUSE_SECONDS)
        caller.errors = min(caller.errors + 1, 16)

    def end(self, deployment_id: str, subject_id: str, compiled: Compiled | None) -> None:
        """End a turn; `compiled` is given where it is compiled now."""
        deployment = self._deployments.get(deployment_id)
        if deployment is None:
            return
        if compiled is not None:
            deployment.remember(compiled)
        self._given_back(deployment, subject_id)

    def forget(self, deployment_id: str) -> None:
        """A model server of the deployment failed: what it had compiled is gone."""
        deployment = self._deployments.get(deployment_id)
        if deployment is not None:
            deployment.known.clear()
            deployment.known_weight = 0

    def keep_only(self, deployment_ids: Set[str]) -> None:
        now = self._monotonic()
        for deployment_id, deployment in list(self._deployments.items()):
            if deployment_id not in deployment_ids and not deployment.running and not deployment.waiting:
                del self._deployments[deployment_id]
                continue
            for subject_id, caller in list(deployment.callers.items()):
                if now - max(caller.pause_until, caller.last_turn) > FORGOTTEN_AFTER_SECONDS:
                    del deployment.callers[subject_id]

    def under_way(self, deployment_id: str) -> int:
        deployment = self._deployments.get(deployment_id)
        return len(deployment.running) if deployment else 0

    def _given_back(self, deployment: _Deployment, subject_id: str) -> None:
        deployment.running.discard(subject_id)
        deployment.heavy.discard(subject_id)
        self._admit(deployment)

    def _admit(self, deployment: _Deployment) -> None:
        """Give free turns to those who wait: batches last, and first to callers that had none for longest."""
        for place in [place for place in deployment.waiting if place.digest in deployment.known]:
            deployment.waiting.remove(place)
            place.admitted.set()
        now = self._monotonic()
        while len(deployment.running) < MOST_AT_ONCE:
            ready = [
                place
                for place in deployment.waiting
                if place.subject_id not in deployment.running
                and not (place.is_heavy and deployment.heavy)
                and deployment.caller(place.subject_id).pause_until <= now
            ]
            if not ready:
                return
            place = min(
                ready,
                key=lambda one: (one.is_batch, deployment.caller(one.subject_id).last_turn, one.number),
            )
            deployment.waiting.remove(place)
            deployment.running.add(place.subject_id)
            if place.is_heavy:
                deployment.heavy.add(place.subject_id)
            deployment.caller(place.subject_id).last_turn = now
            place.has_turn = True
            place.admitted.set()

    @staticmethod
    def _require_room(deployment: _Deployment, subject_id: str) -> None:
        own = sum(place.subject_id == subject_id for place in deployment.waiting)
        if own >= MAX_WAITING_OF_CALLER or len(deployment.waiting) >= MAX_WAITING:
            raise _too_many_wait()


async def _set(event: asyncio.Event) -> None:
    await event.wait()


def _too_many_wait() -> OpenAiError:
    return _refusal(
        "Too many requests wait for their turn with schemas, grammars or expressions that this deployment has"
        " not compiled yet. Use the same ones again, or try again later.",
        PAUSE_SECONDS,
    )


def _paused(seconds: float) -> OpenAiError:
    return _refusal(
        "Schemas, grammars or expressions of your requests made the model server fail. The next new one is"
        f" taken in {math.ceil(seconds)} s; requests with known ones and without any are served.",
        seconds,
    )


def _refusal(message: str, seconds: float) -> OpenAiError:
    headers = {"Retry-After": str(math.ceil(seconds))}
    return OpenAiError(429, message, type="requests", code="rate_limit_exceeded", headers=headers)
