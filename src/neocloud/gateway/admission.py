"""Who a bearer token is, remembered for seconds so that the control plane is not asked for each request.

Keeps hashes of tokens, never tokens. While the control plane is away, its last word holds for some minutes.
"""

import asyncio
import hashlib
import json
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from neocloud.core.clock import Clock
from neocloud.gateway import remembered
from neocloud.gateway.callers import Caller
from neocloud.gateway.control_plane import ControlPlane, ControlPlaneAway, TokenRefused
from neocloud.gateway.errors import not_authenticated, unavailable
from neocloud.gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)

MAX_REMEMBERED = 20_000
REFUSED_SECONDS = 2.0
KEEP_SECONDS = 5.0
MAX_ASKING = 256
"""Questions to the control plane under way: whoever sends keys that nobody has cannot ask more at a time."""
PATIENCE_SECONDS = 1.0
"""A caller that was known a moment ago waits no longer for a control plane that hangs."""
MAX_TOKEN_LENGTH = 16 * 1024
_EARLIER = datetime.min.replace(tzinfo=UTC).isoformat()


@dataclass(slots=True)
class _Known:
    caller: Caller | None
    """None: refused."""
    asked_at: float


class Admission:
    def __init__(self, control_plane: ControlPlane, settings: GatewaySettings, clock: Clock) -> None:
        self._control_plane = control_plane
        self._settings = settings
        self._clock = clock
        self._monotonic: Callable[[], float] = clock.monotonic
        self._is_kept = True
        """The file says all that is known."""
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Caller | None]] = {}

    def start_from_disk(self) -> None:
        """They are asked for anew at once, and only believed while nobody can be asked."""
        now = self._monotonic()
        settings = self._settings
        for digest, caller, age in remembered.load(
            settings.callers_file, self._clock.now(), settings.admit_away_seconds
        ):
            self._known[digest] = _Known(caller, now - max(age, settings.admit_seconds))

    def keep_on_disk(self) -> None:
        if self._is_kept:
            return
        self._is_kept = True
        now = self._monotonic()
        callers = {
            digest: (known.caller, now - known.asked_at)
            for digest, known in self._known.items()
            if known.caller and now - known.asked_at < self._settings.admit_away_seconds
        }
        remembered.keep(self._settings.callers_file, callers, self._clock.now())

    async def keep_forever(self) -> None:
        while True:
            await self._clock.sleep(KEEP_SECONDS)
            try:
                self.keep_on_disk()
            except OSError as error:
                logger.warning("Callers are not kept on disk: %s", error)

    async def caller(self, authorization: str) -> Caller:
        """Of the header Authorization. Raises OpenAiError 401, or 503 when nobody can tell."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        is_text = authorization.isascii() and authorization.isprintable()  # gRPC passes on nothing else
        if scheme.lower() != "bearer" or not token or not is_text or len(token) > MAX_TOKEN_LENGTH:
            raise not_authenticated(
                "You did not provide a valid API key. Send the header `Authorization: Bearer KEY`. Get a key"
                " with `neo iam static-key issue` or `neo iam get-access-token`."
            )
        return await self._current(hashlib.sha256(token.encode()).digest(), token, "")

    async def renewed(self, caller: Caller) -> Caller:
        """The caller as it is now, asked for without its token. Raises OpenAiError 401 or 503.

        Batches that an earlier release kept have no proof: a service account's stand on the account itself.
        """
        stands_on = {"of": caller.subject_id, "by": caller.subject_id, "at": _EARLIER, "actor": None}
        proof = caller.proof or json.dumps(stands_on)
        return await self._current(hashlib.sha256(b"proof " + proof.encode()).digest(), "", proof)

    async def _current(self, digest: bytes, token: str, proof: str) -> Caller:
        known = self._known.get(digest)
        now = self._monotonic()
        if known is not None and known.caller is not None:
            age = now - known.asked_at
            if age < self._settings.admit_seconds / 2:
                return known.caller
            if age < self._settings.admit_seconds:
                self._ask(digest, token, proof)  # for the next; this one need not wait
                return known.caller
        elif known is not None and now - known.asked_at < REFUSED_SECONDS:
            raise _refused()
        caller = await self._word_on(digest, token, proof, known)
        if caller is None:
            raise _refused()
        return caller

    async def _word_on(self, digest: bytes, token: str, proof: str, known: "_Known | None") -> Caller | None:
        """The control plane's; its last one when it takes too long over it."""
        question = asyncio.shield(self._ask(digest, token, proof))
        if known is None or known.caller is None:
            return await question
        try:
            return await asyncio.wait_for(question, PATIENCE_SECONDS)
        except TimeoutError:
            if self._monotonic() - known.asked_at < self._settings.admit_away_seconds:
                return known.caller
            raise _nobody_to_ask() from None

    def _ask(self, digest: bytes, token: str, proof: str) -> "asyncio.Task[Caller | None]":
        """One question for all who wait for the same answer."""
        task = self._asking.get(digest)
        if task is None:
            if len(self._asking) >= MAX_ASKING:
                raise unavailable(
                    "Too many API keys are being checked at the moment. Try again.",
                    retry_after=1,
                    code="busy",
                )
            task = self._asking[digest] = asyncio.ensure_future(self._admit(digest, token, proof))
            task.add_done_callback(lambda done: self._answered(digest, done))
        return task

    def _answered(self, digest: bytes, task: "asyncio.Task[Caller | None]") -> None:
        self._asking.pop(digest, None)
        if not task.cancelled():
            task.exception()  # whoever waits gets it; nobody waits for an early question

    async def _admit(self, digest: bytes, token: str, proof: str) -> Caller | None:
        asked_at = self._monotonic()
        try:
            caller = caller_of(await self._control_plane.admit(token, proof=proof))
        except TokenRefused:
            caller = None
        except ControlPlaneAway as error:
            return self._last_word(digest, error)
        self._known[digest] = _Known(caller, asked_at)
        self._is_kept = False
        self._known.move_to_end(digest)
        while len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        return caller

    def _last_word(self, digest: bytes, error: ControlPlaneAway) -> Caller:
        known = self._known.get(digest)
        if known and known.caller:
            if self._monotonic() - known.asked_at < self._settings.admit_away_seconds:
                return known.caller
            del self._known[digest]
        logger.warning("API keys cannot be checked: %s", error)
        raise _nobody_to_ask()


def caller_of(response: Any) -> Caller:
    return Caller(
        subject_id=response.subject_id,
        subject_name=response.subject_name,
        tenant_id=response.tenant_id,
        home_project_id=response.home_project_id,
        grants={grant.project_id: frozenset(grant.permissions) for grant in response.grants},
        proof=response.proof,
    )


def _nobody_to_ask() -> Exception:
    return unavailable(
        "API keys cannot be checked at the moment: the control plane is not reachable. Try again.",
        retry_after=2,
        code="control_plane_unavailable",
    )


def _refused() -> Exception:
    return not_authenticated("Incorrect API key: it is unknown, expired or revoked. Create a new one.")
