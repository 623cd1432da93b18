"""Rules of people: passwords, the limits on wrong ones, second factors and invitations. Pure.

Wrong passwords are counted for an e-mail address and for the address of the client. A client that signed in
before is counted apart from both, so guesses by others do not lock the owner out.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address

from pyotp.totp import TOTP
from pyotp.utils import strings_equal

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Transaction
from neocloud.data_plane.addresses import source_network
from neocloud.messages.nebius.iam.v1 import CreateInvitationRequest, Invitation, InvitationStatus

MIN_PASSWORD_CHARS = 12
TOTP_STEP_SECONDS = 30


def password_violations(password: str, email: str, field: str = "password") -> Iterable[Violation]:
    """Check the length above all: rules about kinds of characters only make people write passwords down."""
    if len(password) < MIN_PASSWORD_CHARS:
        yield Violation(
            field, f"must have at least {MIN_PASSWORD_CHARS} characters, for example several words"
        )
    elif password.casefold() in (email.casefold(), email.casefold().partition("@")[0]):
        yield Violation(field, "must not be the e-mail address")
    elif len(set(password)) < 4:
        yield Violation(field, "repeats too few characters")


def totp_step(secret: str, code: str, now: datetime, last_step: int) -> int | None:
    """Return the time step that a code belongs to, at most one before or after the present one. None when the
    code is wrong or was used."""
    digits = code.replace(" ", "")
    totp = TOTP(secret)
    present = int(now.timestamp()) // TOTP_STEP_SECONDS
    for step in (present - 1, present, present + 1):
        if step > last_step and strings_equal(totp.generate_otp(step), digits):
            return step
    return None


MAX_ATTEMPTS = 5
"""The limit of wrong passwords for one address, from one client that signed in before, or of one signed-in
account."""
MAX_FROM_SOURCE = 30
"""The limit of wrong passwords from one network address, for all accounts together."""
MAX_FROM_LOOPBACK = 300
"""The same from this machine: behind a tunnel or a proxy, many people are one source."""
WINDOW = timedelta(minutes=15)
"""Starts at the first wrong password; at its end the count is dropped."""
MAX_COUNTED = 100_000
"""The most addresses, or sources, that have a count at the same time. Beyond it, the oldest counts that lock
nothing are dropped."""
FORGOTTEN_TOGETHER = 1000
SOURCES = "iam.attempts/source"


@dataclass(frozen=True)
class Counted:
    """Something that wrong passwords are counted for."""

    space: str
    name: str
    limit: int


def of_address(email: str) -> Counted:
    """Compare addresses without regard to case, and store only their hash."""
    digest = hashlib.sha256(email.strip().casefold().encode()).hexdigest()
    return Counted("iam.attempts/address", digest, MAX_ATTEMPTS)


def of_source(source: str) -> Counted:
    """Count attempts from one address, or from the network of an IPv6 host."""
    return Counted(
        SOURCES, source_network(source), MAX_FROM_LOOPBACK if _is_local(source) else MAX_FROM_SOURCE
    )


def _is_local(source: str) -> bool:
    """Return whether the source is this machine, or not an address: a call inside this process."""
    try:
        return ip_address(source.partition("%")[0]).is_loopback
    except ValueError:
        return True


def of_device(device_id: str) -> Counted:
    return Counted("iam.attempts/device", device_id, MAX_ATTEMPTS)


def of_account(account_id: str) -> Counted:
    """Count attempts of a signed-in user to prove their identity again; nobody else can use them up."""
    return Counted("iam.attempts/account", account_id, MAX_ATTEMPTS)


DEFAULT_INVITATION_LIFETIME = timedelta(days=7)
MAX_INVITATION_LIFETIME = timedelta(days=30)
InvitationState = InvitationStatus.State
_ADDRESS = re.compile(r"[^@\s\x00-\x1f]{1,64}@[^@\s\x00-\x1f]{1,189}")


class InvitationRules(Rules[Invitation]):
    def violations(
        self, new: Invitation, old: Invitation | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        if old is not None and old.spec.email != new.spec.email:
            yield Violation("spec.email", "cannot be changed; delete the invitation and create another")


def invitation_violations(request: CreateInvitationRequest) -> Iterable[Violation]:
    """Return what is wrong with a request to create an invitation."""
    if not _ADDRESS.fullmatch(request.spec.email):
        yield Violation("spec.email", "must be an e-mail address")
    if request.metadata.id or request.metadata.name:
        yield Violation(
            "metadata",
            "must have neither name nor id: invitations have no names, the cloud assigns ids",
        )
    if (
        request.HasField("expires_in")
        and not timedelta() < invitation_lifetime(request) <= MAX_INVITATION_LIFETIME
    ):
        yield Violation("expires_in", f"must be more than 0 and at most {MAX_INVITATION_LIFETIME.days} days")


def invitation_lifetime(request: CreateInvitationRequest) -> timedelta:
    if not request.HasField("expires_in"):
        return DEFAULT_INVITATION_LIFETIME
    return timedelta(seconds=request.expires_in.seconds)


def show_expired(invitation: Invitation, tx: Transaction, now: datetime) -> None:
    """Show an expired invitation as such. The stored row does not change when an invitation expires."""
    status = invitation.status
    if status.state == InvitationState.Value("PENDING") and now >= contract.to_datetime(status.expires_at):
        status.state = InvitationState.Value("EXPIRED")
