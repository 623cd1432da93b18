# pyright: strict
"""Callers of the API and the gateway: how often each may call, and the key that shows the gateway.

Calls are counted with token buckets: a call takes one token, and a bucket is refilled steadily and holds
a burst.

The control plane makes a file with a key for its gateway, which calls on behalf of others. Anyone who can
read the key can look up the owner of any token, so only the owner of the file may read it.
"""

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv6Network, ip_address
from pathlib import Path

from neocloud.core.osfiles import create_file

BURST_SECONDS = 10
"""A bucket holds as many calls as are refilled in this time."""
MAX_CALLERS = 20_000
"""Buckets that are kept. Beyond that, the callers that called longest ago start again with a full bucket."""
_IPV6_NETWORK_BITS = 64
_MAX_SOURCE_CHARS = 64
KEY_BYTES = 32
KEY_HEADER = "x-neocloud-gateway-key"
TEMPORARY_KEY_PREFIX = "NCTK"
"""How the ids of temporary keys begin, which are for S3 alone."""
CLIENT_HEADER = "x-neocloud-client-address"
"""Where the client of the gateway is on whose behalf it calls; counts only beside the key."""


@dataclass(frozen=True)
class Rate:
    """`per_second` 0 means no limit."""

    per_second: float

    @property
    def burst(self) -> float:
        return max(1.0, self.per_second * BURST_SECONDS)


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class Buckets:
    """One bucket for each caller, all of one rate."""

    def __init__(self, rate: Rate, monotonic: Callable[[], float]) -> None:
        self.per_second, self._burst = rate.per_second, rate.burst
        self._monotonic = monotonic
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, caller: str) -> float:
        """Count one call and return 0; of an empty bucket, return the seconds to wait and count nothing."""
        if not self.per_second:
            return 0.0
        now = self._monotonic()
        bucket = self._buckets.get(caller)
        if bucket is None:
            bucket = self._buckets[caller] = _Bucket(self._burst, now)
            if len(self._buckets) > MAX_CALLERS:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(caller)
            bucket.tokens = min(self._burst, bucket.tokens + (now - bucket.at) * self.per_second)
            bucket.at = now
        if bucket.tokens < 1:
            return (1 - bucket.tokens) / self.per_second
        bucket.tokens -= 1
        return 0.0


def repository_limit(repository: str) -> str:
    """Return what a key that pulls one repository of a registry is limited to: names can be longer than the
    limit that the id of a key holds."""
    return hashlib.sha256(repository.encode()).hexdigest()


@lru_cache(maxsize=4096)
def is_private(address: str) -> bool:
    """Return whether an address is of this machine or a private network, so that nothing leaves to others."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = found.ipv4_mapped if found.version == 6 else None
    return (mapped or found).is_private


def source_network(address: str) -> str:
    """Return what an address is counted as: an IPv4 address as itself, an IPv6 address as its /64 network.

    One IPv6 host has 2^64 addresses to call from.
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address[:_MAX_SOURCE_CHARS]
    if found.version == 4:
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(IPv6Network((found, _IPV6_NETWORK_BITS), strict=False))


@dataclass(frozen=True)
class GatewayKey:
    value: str = field(repr=False)

    def is_shown(self, headers: Mapping[str, str]) -> bool:
        """Return whether a call with these headers carries the key."""
        return hmac.compare_digest(self.value.encode(), headers.get(KEY_HEADER, "").encode())


class ObjectGatewayKey(GatewayKey):
    """The key of the object gateway. Neither gateway may call what is the other one's."""


@dataclass(frozen=True)
class ScrapeKey:
    """With which a collector on this machine reads one `/metrics`; unlike a token it never expires."""

    value: str = field(repr=False)

    def is_shown(self, headers: Mapping[str, str]) -> bool:
        """Return whether a call with these headers carries the key, as the token of `Authorization`."""
        given = headers.get("authorization", "").encode()
        return hmac.compare_digest(f"Bearer {self.value}".encode(), given)


MACHINE_PERMISSION = "cloud.machine.inspect"
"""On the first tenant, the operator's: its admins and editors have this permission, its viewers do not."""


def metrics_folder(home: Path) -> Path:
    """Return the folder of the store of metrics and of the keys around it."""
    return home / "metrics"


STORE_USER = "neocloud"
"""With which the store of metrics is called, beside its password."""


def metrics_password_file(home: Path) -> Path:
    return metrics_folder(home) / "password"


def ensure_metrics_password(home: Path) -> Path:
    """Return the file with the password of the store of metrics, a new one when there is none."""
    _load_or_make_key(metrics_password_file(home))
    return metrics_password_file(home)


def scrape_key_file(home: Path) -> Path:
    return metrics_folder(home) / "scrape.key"


def load_or_make_scrape_key(home: Path) -> ScrapeKey:
    """Return the key in the home folder, a new one when there is none."""
    return ScrapeKey(_load_or_make_key(scrape_key_file(home)))


def gateway_scrape_key_file(home: Path) -> Path:
    return metrics_folder(home) / "gateway-scrape.key"


def load_or_make_gateway_scrape_key(home: Path) -> ScrapeKey:
    """Return the key for the metrics of the gateway of models alone.

    While the gateway is down, any user of the host can listen on its port and is shown this key by
    collectors. The control plane does not take it.
    """
    return ScrapeKey(_load_or_make_key(gateway_scrape_key_file(home)))


def gateway_folder(home: Path) -> Path:
    """Return the folder that the gateway owns."""
    return home / "gateway"


def gateway_key_file(home: Path) -> Path:
    return gateway_folder(home) / "key"


def load_or_make_gateway_key(home: Path) -> GatewayKey:
    """Return the key in the home folder, a new one when there is none."""
    return GatewayKey(_load_or_make_key(gateway_key_file(home)))


def object_gateway_folder(home: Path) -> Path:
    """Return the folder that the object gateway owns; the store of the objects is in it."""
    return home / "objects"


def object_gateway_key_file(home: Path) -> Path:
    return object_gateway_folder(home) / "key"


def load_or_make_object_gateway_key(home: Path) -> ObjectGatewayKey:
    """Return the key in the home folder, a new one when there is none."""
    return ObjectGatewayKey(_load_or_make_key(object_gateway_key_file(home)))


def _load_or_make_key(path: Path) -> str:
    """Return a key as text without spaces, as headers carry it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        create_file(path, secrets.token_urlsafe(KEY_BYTES))
    key = path.read_text().strip()
    if path.stat().st_mode & 0o077 or len(key) < KEY_BYTES:
        raise OSError(f"The key {path} is damaged or open to others. Remove it; a new one is made.")
    return key
