"""The keys with which collectors read `/metrics`, and the password of the store of metrics."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from neocloud.data_plane.gateway_keys import load_or_make_key


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
    load_or_make_key(metrics_password_file(home))
    return metrics_password_file(home)


def scrape_key_file(home: Path) -> Path:
    return metrics_folder(home) / "scrape.key"


def load_or_make_scrape_key(home: Path) -> ScrapeKey:
    """Return the key in the home folder, a new one when there is none."""
    return ScrapeKey(load_or_make_key(scrape_key_file(home)))


def gateway_scrape_key_file(home: Path) -> Path:
    return metrics_folder(home) / "gateway-scrape.key"


def load_or_make_gateway_scrape_key(home: Path) -> ScrapeKey:
    """Return the key for the metrics of the gateway of models alone.

    While the gateway is down, any user of the host can listen on its port and is shown this key by
    collectors. The control plane does not take it.
    """
    return ScrapeKey(load_or_make_key(gateway_scrape_key_file(home)))
