"""Authenticate bearer tokens, with a cache so that not every request calls the control plane.

The cache and its file hold hashes of tokens, never tokens. While the control plane is not reachable, entries
stay valid for some minutes. The Host header is checked here as well, so that no web page reaches the gateway
under a host name of its own.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from starlette.types import Scope

from neocloud.core.clock import Clock
from neocloud.core.loops import every
from neocloud.core.osfiles import write_file
from neocloud.data_plane.answer_cache import AnswerAge, AnswerCache, AnswerTimes, TooManyQuestions
from neocloud.data_plane.control_plane_client import AwayLog, ControlPlaneUnavailable
from neocloud.data_plane.http.server import HostNames, host_name, is_loopback_name
from neocloud.messages.neocloud.inference.v1 import AdmitResponse
from neocloud.model_gateway.api.errors import (
    OpenAiError,
    bad_request,
    forbidden,
    not_authenticated,
    unavailable,
)
from neocloud.model_gateway.control_plane import ControlPlane, InvalidToken
from neocloud.model_gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)

INVOKE = "inference.deployments.invoke"


@dataclass(frozen=True)
class Caller:
    """A subject, and its permissions by project."""

    subject_id: str
    subject_name: str
    tenant_id: str
    home_project_id: str
    """Project of requests that name no other one; "" for people."""
    grants: Mapping[str, frozenset[str]]
    proof: str = ""
    """Proof of its token, by which the control plane admits it again, for example while a batch runs."""
    is_operator: bool = False
    """It may see what all tenants do."""
    renew_until: float = 0.0
    """Until then, in seconds of the wall clock, the proof admits only while the token does."""

    def may(self, permission: str, project_id: str) -> bool:
        return permission in self.grants.get(project_id, ())

    def project(self, requested: str, permission: str) -> str:
        """Return the project of a request; `requested` is its OpenAI-Project header, or "".

        Raises OpenAiError: 403 where the caller lacks the permission, 400 where the project is
        ambiguous.
        """
        possible = [project for project in self.grants if self.may(permission, project)]
        chosen = requested or self.home_project_id or (possible[0] if len(possible) == 1 else "")
        if not chosen and possible:
            raise bad_request(
                f"You have access to several projects ({', '.join(sorted(possible))}). Choose one with the"
                " OpenAI-Project header, or with `project=` of the OpenAI client.",
                param="OpenAI-Project",
            )
        if not chosen or chosen not in possible:
            raise forbidden(
                f"You do not have the permission {permission} in"
                f" {f'the project {chosen}' if chosen else 'any project'}."
            )
        return chosen


INVALID_KEY_SECONDS = 2.0
RENEWED_SECONDS = 300.0
"""So long after its last request, a caller is asked about again before its answer is too old."""
RENEW_CHECK_SECONDS = 1.0
SAVE_SECONDS = 5.0
MAX_LOOKUPS = 256
"""Concurrent lookups at the control plane. A client that sends unknown keys cannot cause more."""
LOOKUP_TIMEOUT_SECONDS = 1.0
"""A cached caller waits no longer for a control plane that does not respond."""
MAX_TOKEN_LENGTH = 16 * 1024
_EARLIER = datetime.min.replace(tzinfo=UTC).isoformat()


class Authenticator:
    def __init__(self, control_plane: ControlPlane, settings: GatewaySettings, clock: Clock) -> None:
        self._control_plane = control_plane
        self._settings = settings
        self._clock = clock
        times = AnswerTimes(
            settings.admit_seconds,
            INVALID_KEY_SECONDS,
            early_seconds=settings.admit_seconds / 2,
            known_wait_seconds=LOOKUP_TIMEOUT_SECONDS,
            renewed_seconds=RENEWED_SECONDS,
            max_questions=MAX_LOOKUPS,
        )
        away = AwayLog(logger, "known callers are served for a while")
        self._callers = AnswerCache[bytes, Caller](clock, AnswerAge(settings.admit_away_seconds), times, away)
        self._saved_count = 0
        """Answers of the cache when the file was written."""

    def load_from_disk(self) -> None:
        """Load saved entries. They are checked again when used, and trusted only while the control
        plane is not reachable."""
        file, most_seconds = self._settings.callers_file, self._settings.admit_away_seconds
        for digest, caller, age in load_callers(file, self._clock.now(), most_seconds):
            self._callers.restore(digest, caller, age)

    def save_to_disk(self) -> None:
        if self._saved_count == self._callers.answer_count:
            return
        self._saved_count = self._callers.answer_count
        callers = {
            digest: (caller, age)
            for digest, caller, age in self._callers.known()
            if age < self._settings.admit_away_seconds
        }
        save_callers(self._settings.callers_file, callers, self._clock.now())

    async def save_periodically(self) -> None:
        async def save() -> None:
            self.save_to_disk()

        problem, expected = "Callers could not be saved", (OSError,)
        await every(SAVE_SECONDS, save, problem, self._clock, expected=expected, is_first_now=False)

    async def renew_periodically(self) -> None:
        """Ask again about callers that pause, so that their next request does not wait. It is done by proof,
        since tokens are not kept, and no answer is used for longer because of it."""

        async def renew() -> None:
            now = self._clock.now().timestamp()
            for digest, caller in self._callers.due():
                if caller.proof and now < caller.renew_until - self._settings.admit_seconds:
                    self._callers.renew(digest, lambda caller=caller: self._renewed(caller))

        await every(RENEW_CHECK_SECONDS, renew, "Callers could not be renewed", self._clock)

    async def _renewed(self, caller: Caller) -> Caller | None:
        found = await self._admit("", caller.proof)
        return found and replace(found, renew_until=caller.renew_until)

    async def authenticate(self, authorization: str) -> Caller:
        """Return the caller of an Authorization header. Raises OpenAiError 401, or 503 when it cannot
        be checked."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        is_text = authorization.isascii() and authorization.isprintable()  # gRPC accepts nothing else
        if scheme.lower() != "bearer" or not token or not is_text or len(token) > MAX_TOKEN_LENGTH:
            raise not_authenticated(
                "You did not provide a valid API key. Send the header `Authorization: Bearer KEY`. Get a key"
                " with `neo session token`, or one that lasts with `neo iam static-key issue`."
            )
        return await self._current(hashlib.sha256(token.encode()).digest(), token, "")

    async def refresh(self, caller: Caller) -> Caller:
        """Return the caller with its present permissions, without its token. Raises OpenAiError 401
        or 503.

        Batches of an earlier release have no proof: their service account is its own proof.
        """
        own_proof = {"of": caller.subject_id, "by": caller.subject_id, "at": _EARLIER, "actor": None}
        proof = caller.proof or json.dumps(own_proof)
        return await self._current(hashlib.sha256(b"proof " + proof.encode()).digest(), "", proof)

    async def _current(self, digest: bytes, token: str, proof: str) -> Caller:
        try:
            caller = await self._callers.find(digest, lambda: self._admit(token, proof))
        except TooManyQuestions:
            raise unavailable(
                "Too many API keys are being checked at the moment. Try again.", retry_after=1, code="busy"
            ) from None
        except ControlPlaneUnavailable as error:
            raise _control_plane_unavailable() from error
        if caller is None:
            raise not_authenticated("Incorrect API key: it is unknown, expired or revoked. Create a new one.")
        return caller

    async def _admit(self, token: str, proof: str) -> Caller | None:
        try:
            return _caller_from(await self._control_plane.admit(token, proof=proof))
        except InvalidToken:
            return None


def _caller_from(response: AdmitResponse) -> Caller:
    return Caller(
        subject_id=response.subject_id,
        subject_name=response.subject_name,
        tenant_id=response.tenant_id,
        home_project_id=response.home_project_id,
        grants={grant.project_id: frozenset(grant.permissions) for grant in response.grants},
        proof=response.proof,
        is_operator=response.is_operator,
        renew_until=response.renew_until.ToDatetime(UTC).timestamp(),
    )


def _control_plane_unavailable() -> Exception:
    return unavailable(
        "API keys cannot be checked at the moment: the control plane is not reachable. Try again.",
        retry_after=2,
        code="control_plane_unavailable",
    )


def save_callers(path: Path, callers: Mapping[bytes, tuple[Caller, float]], now: datetime) -> None:
    """Write callers by the hash of their token, with the age of each entry in seconds.

    Times in the file are of the wall clock, since a monotonic clock ends with its process; a clock that was
    set back makes an entry too old rather than too young.
    """
    content = {
        digest.hex(): {
            **msgspec.to_builtins(caller, order="deterministic"),
            "known_at": now.timestamp() - age,
        }
        for digest, (caller, age) in callers.items()
    }
    write_file(path, json.dumps(content))


def load_callers(path: Path, now: datetime, most_seconds: float) -> Iterator[tuple[bytes, Caller, float]]:
    """Yield (hash, caller, age) of entries that are not too old."""
    try:
        content = json.loads(path.read_text())
        for digest, entry in content.items():
            age = now.timestamp() - entry["known_at"]
            if 0 <= age < most_seconds:
                yield bytes.fromhex(digest), msgspec.convert(entry, Caller), age
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("%s cannot be read and is ignored: %s", path, error)


class AllowedHosts:
    def __init__(self, names: Iterable[str]) -> None:
        self._names = HostNames(names)

    def check(self, scope: Scope) -> None:
        """Raise OpenAiError 421 for a request under a name that is not the gateway's."""
        name = self._names.unknown(scope)
        if name is not None:
            raise OpenAiError(
                421,
                f"Unknown host name {name[:80]!r}. Your administrator can allow it with"
                " `neo up --gateway-host NAME`.",
                code="unknown_host",
            )


def require_loopback(scope: Scope) -> None:
    """Raise OpenAiError 403 where a request names any host but the loopback of this machine."""
    if not all(is_loopback_name(host_name(value)) for key, value in scope["headers"] if key == b"host"):
        raise forbidden("This is available on this machine only. Read it from 127.0.0.1.")
