"""How many wrong passwords there may be, from whom, and for how long they count. Pure.

An address is counted, and so is where attempts come from. Somebody who signed in before from the same client
is counted apart from both: strangers who guess lock out strangers, and not the owner.
"""

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address

from neocloud.core.rates import source_network

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
FORGOTTEN_AT_ONCE = 1000
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
