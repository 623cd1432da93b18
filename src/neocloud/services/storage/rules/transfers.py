"""Validation rules of a transfer. Which addresses it may connect to is decided where it runs."""

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from urllib.parse import urlsplit

from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.messages.nebius.storage.v1 import (
    Transfer,
    TransferDestination,
    TransferSource,
    TransferSpec,
)
from neocloud.services.storage.rules.names import name_problem

DEFAULT_INTERVAL = timedelta(minutes=15)
MAX_INTERVAL = timedelta(days=366)
MIN_BANDWIDTH = 65536
"""Slower, the connections of the objects in progress would be given up."""
_REGION = re.compile(r"[A-Za-z0-9-]{1,50}")
_FOREIGN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,99}")
_KEY_ID = re.compile(r"[!-+.0-~-]{1,1000}")
"""Printable, without "/" and ",", which separate what stands beside it in a signature."""
_SECRET = re.compile(r"[!-~]{1,1000}")
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,253}")

_Provider = (
    TransferSource.NebiusProvider
    | TransferSource.S3CompatibleProvider
    | TransferDestination.NebiusProvider
    | TransferDestination.S3CompatibleProvider
)


class TransferRules(Rules[Transfer]):
    def defaults(self, resource: Transfer) -> None:
        if not resource.spec.HasField("inter_iteration_interval"):
            resource.spec.inter_iteration_interval.FromTimedelta(DEFAULT_INTERVAL)

    def quota_demand(self, resource: Transfer) -> Mapping[str, int]:
        return {"storage.transfer.count": 1}

    def violations(self, new: Transfer, old: Transfer | None, reader: ResourceReader) -> Iterable[Violation]:
        spec = new.spec
        if spec.source.HasField("azure_blob_storage"):
            yield Violation(
                "spec.source.azure_blob_storage",
                "is not supported by this cloud yet; use nebius or s3_compatible",
            )
        for name in ("source", "destination"):
            yield from _endpoint_violations(spec, name)
        if spec.inter_iteration_interval.ToTimedelta() > MAX_INTERVAL:
            yield Violation("spec.inter_iteration_interval", f"must be {MAX_INTERVAL.days} days at most")
        limit = spec.limiters.bandwidth_bytes_per_second
        if 0 < limit < MIN_BANDWIDTH:
            yield Violation(
                "spec.limiters.bandwidth_bytes_per_second",
                f"must be {MIN_BANDWIDTH:,} or more, or 0 for the default",
            )
        if _copies_itself(spec):
            yield Violation(
                "spec.destination",
                "is in the bucket of the source, and one prefix begins with the other: it would copy its own"
                " copies; choose another bucket or prefix",
            )


def _endpoint_violations(spec: TransferSpec, name: str) -> Iterable[Violation]:
    whole = spec.source if name == "source" else spec.destination
    kind = whole.WhichOneof("provider")
    if kind not in ("nebius", "s3_compatible"):
        return
    path = f"spec.{name}.{kind}"
    given: _Provider = getattr(whole, kind)
    if not _REGION.fullmatch(given.region):
        yield Violation(f"{path}.region", "must be of letters, digits and '-', such as eu-north1")
    if isinstance(given, TransferSource.S3CompatibleProvider | TransferDestination.S3CompatibleProvider):
        if problem := endpoint_problem(given.endpoint):
            yield Violation(f"{path}.endpoint", problem)
        if not _FOREIGN_NAME.fullmatch(given.bucket_name):
            yield Violation(f"{path}.bucket_name", "must be the name of a bucket: letters, digits and '._-'")
    elif problem := name_problem(given.bucket_name):
        yield Violation(f"{path}.bucket_name", problem)
    if given.HasField("access_key"):
        if not _KEY_ID.fullmatch(given.access_key.access_key_id):
            yield Violation(f"{path}.access_key.access_key_id", "must be the id of an access key for S3")
        if not _SECRET.fullmatch(given.access_key.secret_access_key):
            yield Violation(
                f"{path}.access_key.secret_access_key",
                "is required: the secret of the access key, without spaces",
            )


def endpoint_problem(endpoint: str) -> str:
    """Return why this is not an endpoint; "" where it is one."""
    right = "must be a URL without a path, such as https://storage.example.com"
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError:
        return right
    has_more = bool(parts.query or parts.fragment or "@" in parts.netloc or parts.path)
    host = parts.hostname or ""
    if parts.scheme not in ("https", "http") or has_more or not _HOST.fullmatch(host) or port == 0:
        return right
    return "" if endpoint == endpoint.strip() and "?" not in endpoint and "#" not in endpoint else right


def _copies_itself(spec: TransferSpec) -> bool:
    kind = spec.source.WhichOneof("provider")
    if kind != spec.destination.WhichOneof("provider"):
        return False
    if kind == "nebius":
        is_same = spec.source.nebius.bucket_name == spec.destination.nebius.bucket_name
    else:
        source, destination = spec.source.s3_compatible, spec.destination.s3_compatible
        hosts = source.endpoint.lower(), destination.endpoint.lower()
        is_same = hosts[0] == hosts[1] and source.bucket_name == destination.bucket_name
    first, second = spec.source.prefix, spec.destination.prefix
    return is_same and (first.startswith(second) or second.startswith(first))
