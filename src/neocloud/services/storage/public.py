# pyright: strict
"""What other services have to do with the object gateway: buckets of their own in it, and what it reports."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.neocloud.storage.v1 import BucketReport, GatewayBucket


@dataclass(frozen=True)
class BucketSource:
    """Resources of another service that are kept as buckets of the gateway, each under its own id."""

    kind: str
    permissions: Sequence[str]
    """That the gateway checks on them."""
    bucket: Callable[[Transaction, Resource], GatewayBucket]
    """Returns the bucket as it is wished."""


class BucketSources(tuple[BucketSource, ...]):
    """Of all other services."""


class GatewayNotifier(Protocol):
    def notify(self) -> None:
        """Let the gateway read its buckets again, after a change that the history of the store does not have:
        of a version alone, or of what is stored beside a resource."""
        ...


class GatewayReports(Protocol):
    """What the object gateway reported last."""

    endpoint: str
    """Where it serves: "127.0.0.1:8902"."""

    @property
    def is_reporting(self) -> bool: ...

    def find(self, bucket_id: str) -> BucketReport | None: ...
