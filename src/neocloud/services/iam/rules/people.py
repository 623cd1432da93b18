"""Rules of people: passwords, the limits on wrong ones, second factors and invitations. Pure.

Wrong passwords are counted for an e-mail address and for the address of the client. A client that signed in
before is counted apart from both, so guesses by strangers do not lock the owner out.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import Any

from pyotp.totp import TOTP
from pyotp.utils import strings_equal

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.rates import source_network
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Transaction
from neocloud.messages.nebius.iam.v1 import InvitationStatus

MIN_PASSWORD_CHARS = 12
TOTP_STEP_SECONDS = 30


def password_violations(password: str, email: str, field: str = "password") -> Iterable[Violation]:
    """Length is what counts; rules about signs only make people write passwords down."""
    if len(password) < MIN_PASSWORD_CHARS:
        yield Violation(field, f"must have at least {MIN_PASSWORD_CHARS} characters; several words do well")
    elif password.casefold() in (email.casefold(), email.casefold().partition("@")[0]):
        yield Violation(field, "must not be the e-mail address")
    elif len(set(password)) < 4:
        yield Violation(field, "repeats too few characters")


def totp_step(secret: str, code: str, now: datetime, last_step: int) -> int | None:
    """The time step a code belongs to, one before or after now at most; None when it is wrong or was used."""
    digits = code.replace(" ", "")
    totp = TOTP(secret)
    present = int(now.timestamp()) // TOTP_STEP_SECONDS
    for step in (present - 1, present, present + 1):
        if step > last_step and strings_equal(totp.generate_otp(step), digits):
            return step
    return None


MAX_ATTEMPTS = 5
"""Wrong passwords for one address, from one client that signed in before, or of one signed-in account."""
MAX_FROM_SOURCE = 30
"""Wrong passwords from one network address, whatever accounts they are for."""
MAX_FROM_LOOPBACK = 300
"""The same from this machine: tunnels and proxies make many people one source."""
WINDOW = timedelta(minutes=15)
"""From the first wrong one on; then all are forgotten."""
MAX_COUNTED = 100_000
"""Addresses, or sources, with wrong passwords at once. Of more, those that are not locked are forgotten, the
oldest first; locks last until they end."""
FORGOTTEN_TOGETHER = 1000
SOURCES = "iam.attempts/source"


@dataclass(frozen=True)
class Counted:
    """Something that wrong passwords are counted for."""

    space: str
    name: str
    limit: int


def of_address(email: str) -> Counted:
    """Addresses are compared without regard to case; what is kept does not say which they are."""
    digest = hashlib.sha256(email.strip().casefold().encode()).hexdigest()
    return Counted("iam.attempts/address", digest, MAX_ATTEMPTS)


def of_source(source: str) -> Counted:
    """Attempts from one address, or from the network of an IPv6 host."""
    return Counted(
        SOURCES, source_network(source), MAX_FROM_LOOPBACK if _is_local(source) else MAX_FROM_SOURCE
    )


def _is_local(source: str) -> bool:
    """Whether it is this machine, or no address: a call inside of this process."""
    try:
        return ip_address(source.partition("%")[0]).is_loopback
    except ValueError:
        return True


def of_device(device_id: str) -> Counted:
    return Counted("iam.attempts/device", device_id, MAX_ATTEMPTS)


def of_account(account_id: str) -> Counted:
    """Attempts of a signed-in user to prove their identity again; nobody else can use them up."""
    return Counted("iam.attempts/account", account_id, MAX_ATTEMPTS)


DEFAULT_INVITATION_LIFETIME = timedelta(days=7)
MAX_INVITATION_LIFETIME = timedelta(days=30)
InvitationState = InvitationStatus.State
_ADDRESS = re.compile(r"[^@\s\x00-\x1f]{1,64}@[^@\s\x00-\x1f]{1,189}")


class InvitationRules(Rules):
    def violations(self, new: Any, old: Any | None, reader: ResourceReader) -> Iterable[Violation]:
        if old is not None and old.spec.email != new.spec.email:
            yield Violation("spec.email", "stays; delete the invitation and make another")


def invitation_violations(request: Any) -> Iterable[Violation]:
    """Of a request to create one."""
    if not _ADDRESS.fullmatch(request.spec.email):
        yield Violation("spec.email", "must be an e-mail address")
    if request.metadata.id or request.metadata.name:
        yield Violation("metadata", "invitations have no names, and their ids are given by the cloud")
    if (
        request.HasField("expires_in")
        and not timedelta() < invitation_lifetime(request) <= MAX_INVITATION_LIFETIME
    ):
        yield Violation("expires_in", f"must be more than 0 and at most {MAX_INVITATION_LIFETIME.days} days")


def invitation_lifetime(request: Any) -> timedelta:
    if not request.HasField("expires_in"):
        return DEFAULT_INVITATION_LIFETIME
    return timedelta(seconds=request.expires_in.seconds)


def show_expired(invitation: Any, tx: Transaction, now: datetime) -> None:
    """The view: nothing happens in the store at the moment when an invitation expires."""
    status = invitation.status
    if status.state == InvitationState.Value("PENDING") and now >= contract.to_datetime(status.expires_at):
        status.state = InvitationState.Value("EXPIRED")
