"""What is legal for invitations, and how one looks when its time is over."""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Transaction
from neocloud.messages.nebius.iam.v1 import InvitationStatus

DEFAULT_LIFETIME = timedelta(days=7)
MAX_LIFETIME = timedelta(days=30)
InvitationState = InvitationStatus.State
_ADDRESS = re.compile(r"[^@\s\x00-\x1f]{1,64}@[^@\s\x00-\x1f]{1,189}")


class InvitationRules(Rules):
    def violations(self, new: Any, old: Any | None, world: ResourceReader) -> Iterable[Violation]:
        if old is not None and old.spec.email != new.spec.email:
            yield Violation("spec.email", "stays; delete the invitation and make another")


def invitation_violations(request: Any) -> Iterable[Violation]:
    """Of a request to create one."""
    if not _ADDRESS.fullmatch(request.spec.email):
        yield Violation("spec.email", "must be an e-mail address")
    if request.metadata.id or request.metadata.name:
        yield Violation("metadata", "invitations have no names, and their ids are given by the cloud")
    if request.HasField("expires_in") and not timedelta() < lifetime(request) <= MAX_LIFETIME:
        yield Violation("expires_in", f"must be more than 0 and at most {MAX_LIFETIME.days} days")


def lifetime(request: Any) -> timedelta:
    if not request.HasField("expires_in"):
        return DEFAULT_LIFETIME
    return timedelta(seconds=request.expires_in.seconds)


def show_expired(invitation: Any, tx: Transaction, now: datetime) -> None:
    """The view: nothing happens in the store at the moment when an invitation expires."""
    status = invitation.status
    if status.state == InvitationState.Value("PENDING") and now >= contract.to_datetime(status.expires_at):
        status.state = InvitationState.Value("EXPIRED")
