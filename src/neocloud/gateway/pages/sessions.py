"""Who is signed in at the page, and one-time codes to sign in with. In memory only: a restart signs out.

A session holds the caller's token, which never goes to the page: each request is admitted by it anew, so what
is revoked or has expired ends here too. Codes and session ids are kept as hashes.
"""

import hashlib
import secrets
from collections import OrderedDict
from dataclasses import dataclass

from neocloud.core.clock import Clock

CODE_SECONDS = 300
SESSION_SECONDS = 12 * 3600
MOST = 10_000
"""Of each; the oldest go first."""


@dataclass(frozen=True)
class _Kept:
    token: str
    ends_at: float


class Sessions:
    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._codes: OrderedDict[bytes, _Kept] = OrderedDict()
        self._sessions: OrderedDict[bytes, _Kept] = OrderedDict()

    def new_code(self, token: str) -> str:
        """For the caller who has this token."""
        return self._keep(self._codes, token, CODE_SECONDS)

    def take_code(self, code: str) -> str | None:
        """The token that it was made for; nobody gets it twice."""
        kept = self._codes.pop(_digest(code), None)
        return kept.token if kept and self._now() < kept.ends_at else None

    def new_session(self, token: str) -> str:
        return self._keep(self._sessions, token, SESSION_SECONDS)

    def token(self, session_id: str) -> str | None:
        kept = self._sessions.get(_digest(session_id))
        return kept.token if kept and self._now() < kept.ends_at else None

    def end(self, session_id: str) -> None:
        self._sessions.pop(_digest(session_id), None)

    def _keep(self, where: "OrderedDict[bytes, _Kept]", token: str, seconds: float) -> str:
        now = self._now()
        while where and (len(where) >= MOST or next(iter(where.values())).ends_at <= now):
            where.popitem(last=False)
        name = secrets.token_urlsafe(32)
        where[_digest(name)] = _Kept(token, now + seconds)
        return name


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()
