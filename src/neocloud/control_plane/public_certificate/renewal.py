"""When a certificate is ordered from a public authority, and what is known of that.

A certificate is ordered when there is none for the names that were chosen, and when two thirds of its
lifetime have passed. An order that fails is repeated, at growing intervals that a restart does not shorten.
Until then the cloud serves the certificate that it has, or one of its own authority.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from socket import socket
from typing import Any
from urllib.parse import urlsplit

from neocloud.control_plane.public_certificate.issued import (
    SHORTEST_USE,
    Issued,
    NotUsable,
    OrderFailed,
    checked,
    new_key,
    read_issued,
)
from neocloud.core.clock import Clock
from neocloud.core.osfiles import write_file
from neocloud.server import AddressMissing, ServerError, listen_on
from neocloud.settings.settings import Settings

FIRST_RETRY = timedelta(minutes=15)
"""After an order that failed; each time twice as long. Let's Encrypt allows five failures in an hour."""
LONGEST_RETRY = timedelta(days=1)
LONGEST_ASKED_FOR = timedelta(days=7)
"""How long an authority may put the next order off."""
UNKNOWN_SECONDS = 600.0
"""Until the next look, where the certificate that is kept cannot be read for a moment."""
JITTER = 0.25
"""Part of an interval by which it may be longer."""
YEAR_5138 = 1e11
CUT_OFF = "the server ended during the order."
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Failures:
    """Orders that have failed since the last one that succeeded."""

    wanted: str = ""
    """The names that were ordered, and the authority."""
    count: int = 0
    error: str = ""
    at: float = 0.0
    next_at: float = 0.0
    """Both in seconds since 1970."""


class PublicCertificate:
    """The certificate for `--acme-domain`. For the one server of a state folder."""

    def __init__(
        self, settings: Settings, clock: Clock, listen: Callable[[], Sequence[socket]] | None = None
    ) -> None:
        self._settings, self._clock = settings, clock
        self._listen = listen or self._listen_for_check
        self._names, self._directory = settings.acme_domains, settings.acme_directory
        self._wanted = json.dumps([sorted(self._names), self._directory])
        self._folder = settings.certificate_folder
        self._failures = _read_failures(settings.acme_failures_file)
        self._quiet_until = clock.monotonic()
        """No order before, whatever the files say."""
        self._unsaved: Issued | None = None
        """Issued, but the disk was full."""
        with suppress(OSError):
            if self._seconds_until_renewal() > 0:
                self._failures = Failures()  # the server died before it removed the file
        self.step = "waiting" if self.seconds_until_due() <= 0 else ""
        """The step of an order, until its certificate is served; "" when there is none."""

    @property
    def authority(self) -> str:
        return urlsplit(self._directory).netloc

    def seconds_until_due(self) -> float:
        """Return the time until the next order; 0 when it should begin."""
        now, quiet = self._clock.now(), self._quiet_until - self._clock.monotonic()
        try:
            due = self._seconds_until_renewal()
        except OSError:
            return UNKNOWN_SECONDS
        failures = self._failures
        # A clock that was set back since must not put the next order off for longer.
        if failures.wanted == self._wanted and failures.at <= now.timestamp():
            due = max(due, failures.next_at - now.timestamp())
        return max(due, quiet, 0.0)

    def _seconds_until_renewal(self) -> float:
        """Return how long the certificate that is kept is good for; not above 0 if it is not the wanted one.

        Raises OSError when that is not known.
        """
        found, now = read_issued(_issued_file(self._settings)), self._clock.now()
        is_wanted = found is not None and found.directory == self._directory and {*self._names} <= found.names
        return (found.renew_at - now).total_seconds() if found and is_wanted and found.is_valid(now) else 0.0

    async def renew(self) -> None:
        """Order a certificate if it is time to. A failure is logged, and tried again later."""
        if self.seconds_until_due() > 0:
            return
        before = self._failures
        try:
            # On the disk before the order: a server that dies over and over does not order over and over.
            self._note_failure(CUT_OFF)
            found = self._unsaved or await self._ordered()
            self._unsaved = found
            found.save(_issued_file(self._settings))
            self._failures, self._unsaved = Failures(), None
            self._quiet_until = self._clock.monotonic() + SHORTEST_USE.total_seconds()
            with suppress(OSError):  # the next start ignores it
                self._settings.acme_failures_file.unlink(missing_ok=True)
            logger.info("%s issued a certificate for %s", self.authority, self._title)
        except asyncio.CancelledError:
            with suppress(OSError):
                self._keep(before)
            raise
        except NotUsable as error:
            self._failed(before, f"{self.authority} issued what cannot be used: {error}.")
        except OrderFailed as error:
            self._failed(before, str(error), timedelta(seconds=min(error.retry_after, 1e7)))
        except OSError as error:
            self._failed(before, f"{error.strerror or error}: {error.filename}.")
        except Exception:  # a loop's border: what serves must not end
            logger.exception("The order of a certificate from %s failed", self.authority)
            self._failed(before, "an internal error; `neo logs` has it.")

    async def _ordered(self) -> Issued:
        from neocloud.control_plane.public_certificate import order  # noqa: PLC0415  0.3 s, and rarely needed

        key = new_key()
        account = order.read_account(self._account_file)
        wanted = self._directory, self._settings.acme_email
        if account is None or (account.directory, account.email) != wanted:
            account = await asyncio.to_thread(order.new_account, *wanted)
            self._save_account(account)
        chain = await order.order_chain(
            account,
            self._names,
            key.encode(),
            listen=self._listen,
            show=self._show,
            registered=self._save_account,
        )
        return checked(self._directory, key, chain, self._names, self._clock.now())

    def _listen_for_check(self) -> Sequence[socket]:
        port = self._settings.acme_http_port
        try:
            return listen_on(self._settings.listen, port)
        except AddressMissing as error:
            raise OrderFailed(
                f"{str(error).partition('. ')[0]} any more, on which {self.authority} checks the names. Give"
                " the host that address again, or stop the cloud and choose one that `ip address` shows:"
                " `neo down`, then `neo up --listen ADDRESS`."
            ) from error
        except ServerError as error:
            raise OrderFailed(
                f"{str(error).partition('. ')[0]}, and {self.authority} checks the names there. Stop what"
                " listens there, or let it forward /.well-known/acme-challenge/ to a port that you choose"
                " with `neo config set acme-http-port PORT`."
            ) from error

    def _show(self, step: str) -> None:
        self.step = step
        logger.info("The certificate for %s: %s", self._title, step)

    @property
    def _title(self) -> str:
        return ", ".join(self._names)

    @property
    def _account_file(self) -> Path:
        return self._folder / "acme-account.json"

    def _save_account(self, account: Any) -> None:
        write_file(self._account_file, json.dumps(asdict(account)), 0o600, durable=True)

    def _failed(self, before: Failures, error: str, asked_for: timedelta = timedelta()) -> None:
        try:
            self._note_failure(error, before, asked_for)
        except OSError as full:
            logger.warning("%s cannot be written: %s", self._settings.acme_failures_file, full)
        self.step = ""
        logger.warning("%s", self.problem())

    def _note_failure(
        self, error: str, before: Failures | None = None, asked_for: timedelta = timedelta()
    ) -> None:
        before = before or self._failures
        count = before.count + 1 if before.wanted == self._wanted else 1
        pause = min(FIRST_RETRY * 2 ** min(count - 1, 20), LONGEST_RETRY)
        pause *= 1 + JITTER * secrets.randbelow(1000) / 1000
        pause = max(pause, min(asked_for, LONGEST_ASKED_FOR))
        at = self._clock.now().timestamp()
        self._keep(Failures(self._wanted, count, error, at, at + pause.total_seconds()))

    def _keep(self, failures: Failures) -> None:
        self._failures = failures  # also if the disk is full
        write_file(self._settings.acme_failures_file, json.dumps(asdict(failures)), 0o600, durable=True)

    def problem(self) -> str:
        """Return what is wrong and what happens next; "" while nothing is."""
        failures = self._failures
        if failures.wanted != self._wanted or not failures.error or self.step:
            return ""
        next_at = datetime.fromtimestamp(failures.next_at, UTC)
        served = None
        with suppress(OSError):
            served = held_certificate(self._settings, self._clock.now())
        meanwhile = (
            f"The present one is served until {served.ends_at:%Y-%m-%d %H:%M} UTC."
            if served
            else "Until then the cloud serves a certificate of its own authority."
        )
        return (
            f"The certificate for {self._title} was not issued: {failures.error} The next attempt is at"
            f" {next_at:%Y-%m-%d %H:%M} UTC. {meanwhile}"
        )

    def report(self) -> dict[str, object]:
        """Return what `neo status` shows."""
        return {
            "names": list(self._names),
            "authority": self.authority,
            "directory": self._directory,
            "step": self.step,
        }


def held_certificate(settings: Settings, now: datetime) -> Issued | None:
    """Return the certificate that a public authority issued for one of the names at least, if it is valid.

    Raises OSError when that is not known."""
    if not settings.acme_domains:
        return None
    found = read_issued(_issued_file(settings))
    return found if found and found.is_valid(now) and found.names & {*settings.acme_domains} else None


def _issued_file(settings: Settings) -> Path:
    return settings.certificate_folder / "acme-certificate.json"


def _read_failures(file: Path) -> Failures:
    with suppress(OSError, ValueError, TypeError):
        found = Failures(**json.loads(file.read_text()))
        at, next_at = float(found.at), float(found.next_at)
        if 0 <= at <= next_at < YEAR_5138:
            next_at = min(next_at, at + LONGEST_ASKED_FOR.total_seconds())
            return Failures(str(found.wanted), int(found.count), str(found.error), at, next_at)
    return Failures()
