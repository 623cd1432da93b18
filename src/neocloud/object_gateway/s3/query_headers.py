# pyright: strict
"""Parameters of the query that stand for headers: `x-amz-*` of presigned URLs. Pure.

SDKs move headers into the query when they presign, in lower case or as "X-Amz-Meta-Name". Each counts as its
header (decision 0076).
"""

import base64
import re
from collections.abc import Mapping

from neocloud.object_gateway.s3.errors import S3Error, invalid
from neocloud.object_gateway.s3.signature import PAYLOAD_NAME, QUERY_NAMES, SIGNATURE_NAME, Pairs
from neocloud.object_store import checksums
from neocloud.object_store.types import ChecksumAlgorithm

_START, _ALGORITHM = "x-amz-", "x-amz-sdk-checksum-algorithm"
_OF_SIGNATURE = frozenset(each.lower() for each in (*QUERY_NAMES, SIGNATURE_NAME, PAYLOAD_NAME))
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_OF_NOTHING = {
    f"x-amz-checksum-{each.lower()}": base64.b64encode(checksums.running(each).digest()).decode()
    for each in ChecksumAlgorithm
}
"""The checksums of an empty body, which SDKs write where they sign before there is a body."""


def is_of_query(name: bytes) -> bool:
    """Return whether a parameter stays a parameter."""
    found = name.decode("latin-1").lower()
    return not found.startswith(_START)


def with_query(headers: Mapping[str, str], pairs: Pairs) -> Mapping[str, str]:
    """Return the headers, by lower-case name, with those that the query has. Raises S3Error where one comes
    twice with different values, or could not be a header."""
    given: dict[str, str] = {}
    for raw_name, raw_value in pairs:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1").strip()
        if not name.startswith(_START) or name in _OF_SIGNATURE:
            continue
        if _CONTROL.search(value):
            raise invalid("The query has a header with control characters.", name=name)
        if given.setdefault(name, value) != value:
            raise _twice(name)
    if not given:
        return headers
    for name, value in _OF_NOTHING.items():
        if given.get(name) == value:
            del given[name]
            given.pop(_ALGORITHM, None)
    for name, value in given.items():
        if headers.get(name, value) != value:
            raise _twice(name)
    return {**headers, **given}


def _twice(name: str) -> S3Error:
    return invalid("A header comes twice, in the query or beside it, with different values.", name=name)
