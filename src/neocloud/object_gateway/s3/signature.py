"""Signatures of AWS, version 4, in the header and in the query of presigned URLs. Pure.

Written from AWS's published description, "Authenticating Requests (AWS Signature Version 4)".
"""

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from urllib.parse import quote_from_bytes

from neocloud.object_gateway.s3.errors import S3Error, denied

ALGORITHM = "AWS4-HMAC-SHA256"
UNSIGNED = "UNSIGNED-PAYLOAD"
MAX_SKEW = timedelta(minutes=15)
MAX_EXPIRES_SECONDS = 7 * 24 * 3600
_KEY_ID = re.compile(r"[A-Za-z0-9_-]{4,512}")
_DAY = re.compile(r"[0-9]{8}")
_REGION = re.compile(r"[a-z0-9-]{1,64}")
_DATE = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_SIGNATURE = re.compile(r"[0-9a-f]{64}")
_HASH = re.compile(r"[0-9a-fA-F]{64}")
_SPACES = re.compile(r" +")
_EXPIRES = re.compile(r"[0-9]{1,7}")
QUERY_NAMES = frozenset(
    ("X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders")
)
SIGNATURE_NAME, PAYLOAD_NAME = "X-Amz-Signature", "X-Amz-Content-Sha256"
Pairs = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Scope:
    """The scope of a signing key: an access key, a day and a region."""

    aws_access_key_id: str
    day: str
    region: str

    def __str__(self) -> str:
        return f"{self.day}/{self.region}/s3/aws4_request"


@dataclass(frozen=True)
class Signed:
    """The signature of a request, before it is verified."""

    scope: Scope
    date: str
    """"20261124T191241Z"."""
    headers: tuple[str, ...]
    """The lower-case names of headers that are signed."""
    signature: str
    payload: str
    """The signed form of the body: its SHA-256 in hexadecimal, UNSIGNED, or a name that begins with
    STREAMING.
    """
    expires_seconds: int | None = None
    """The lifetime of a presigned URL."""

    @property
    def is_presigned(self) -> bool:
        return self.expires_seconds is not None


@dataclass(frozen=True)
class Incoming:
    """The parts of a request that its signature covers."""

    method: str
    path: bytes
    """The path, decoded from the request line."""
    raw_path: bytes
    query: Pairs
    """Decoded names and values."""
    headers: Mapping[str, str]
    """The headers by lower-case name; those that came several times are joined with ","."""


def parse(incoming: Incoming) -> Signed | None:
    """Return the signature; None where the request has none. Raises S3Error."""
    authorization = incoming.headers.get("authorization")
    query = {_text(name): _text(value) for name, value in incoming.query}
    if authorization is not None:
        if "X-Amz-Algorithm" in query or SIGNATURE_NAME in query:
            raise S3Error("InvalidArgument", "Only one way to sign is allowed: the header or the query.")
        return _from_header(incoming, authorization)
    if SIGNATURE_NAME in query or "X-Amz-Algorithm" in query:
        return _from_query(incoming, query)
    if "AWSAccessKeyId" in query and "Signature" in query:
        raise other_version()
    return None


def other_version() -> S3Error:
    return S3Error("InvalidRequest", f"This way to sign is not supported. Use {ALGORITHM}.")


def _from_header(incoming: Incoming, authorization: str) -> Signed:
    algorithm, _, rest = authorization.partition(" ")
    if algorithm != ALGORITHM:
        raise other_version()
    fields: dict[str, str] = {}
    for part in rest.split(","):
        name, _, value = part.strip().partition("=")
        fields[name] = value
    if not {"Credential", "SignedHeaders", "Signature"} <= fields.keys():
        raise _malformed("needs Credential, SignedHeaders and Signature")
    payload = incoming.headers.get("x-amz-content-sha256")
    if payload is None:
        raise S3Error("InvalidRequest", "The header x-amz-content-sha256 is missing.")
    _checked_payload(payload)
    scope = _scope(fields["Credential"], "AuthorizationHeaderMalformed")
    names = tuple(fields["SignedHeaders"].split(";"))
    return Signed(scope, _header_date(incoming.headers), names, fields["Signature"], payload)


def _from_query(incoming: Incoming, query: Mapping[str, str]) -> Signed:
    code = "AuthorizationQueryParametersError"
    if missing := [name for name in (*sorted(QUERY_NAMES), SIGNATURE_NAME) if name not in query]:
        raise S3Error(code, f"The query needs {', '.join(missing)}.")
    if query["X-Amz-Algorithm"] != ALGORITHM:
        raise S3Error(code, f"X-Amz-Algorithm must be {ALGORITHM}.")
    expires = query["X-Amz-Expires"]
    if not (_EXPIRES.fullmatch(expires) and 1 <= int(expires) <= MAX_EXPIRES_SECONDS):
        raise S3Error(code, f"X-Amz-Expires must be from 1 to {MAX_EXPIRES_SECONDS} seconds.")
    if not _DATE.fullmatch(query["X-Amz-Date"]):
        raise S3Error(code, "X-Amz-Date must be of the form 20261124T191241Z.")
    names = tuple(query["X-Amz-SignedHeaders"].split(";"))
    payload = _query_payload(incoming, query, names)
    scope = _scope(query["X-Amz-Credential"], code)
    return Signed(scope, query["X-Amz-Date"], names, query["X-Amz-Signature"], payload, int(expires))


def _query_payload(incoming: Incoming, query: Mapping[str, str], names: Sequence[str]) -> str:
    """Return what a presigned URL says of its body: in the query, in whatever case, or in a signed header.
    Raises S3Error."""
    given = {value for name, value in query.items() if name.lower() == PAYLOAD_NAME.lower()}
    header = incoming.headers.get(PAYLOAD_NAME.lower())
    if header is not None and PAYLOAD_NAME.lower() in names:
        given.add(header)
    if len(given) > 1:
        raise S3Error("InvalidArgument", f"{PAYLOAD_NAME} comes twice, with different values.")
    return _checked_payload(given.pop()) if given else UNSIGNED


def _checked_payload(payload: str) -> str:
    """Raises S3Error."""
    if not (_HASH.fullmatch(payload) or payload == UNSIGNED or payload.startswith("STREAMING-")):
        raise S3Error(
            "InvalidArgument",
            "x-amz-content-sha256 must be a SHA-256 in hexadecimal, UNSIGNED-PAYLOAD or STREAMING-...",
        )
    return payload


def _scope(credential: str, code: str) -> Scope:
    parts = credential.split("/")
    if len(parts) != 5 or not (
        _KEY_ID.fullmatch(parts[0]) and _DAY.fullmatch(parts[1]) and _REGION.fullmatch(parts[2])
    ):
        raise S3Error(code, "The credential must be KEY/DAY/REGION/s3/aws4_request.")
    if parts[3:] != ["s3", "aws4_request"]:
        raise S3Error(code, 'The credential must be for the service "s3" and end with aws4_request.')
    return Scope(parts[0], parts[1], parts[2])


parse_scope = _scope


def _header_date(headers: Mapping[str, str]) -> str:
    given = headers.get("x-amz-date")
    if given is not None and _DATE.fullmatch(given):
        return given
    try:
        at = parsedate_to_datetime(given or headers.get("date", ""))
        return f"{at.astimezone(UTC) if at.tzinfo else at:%Y%m%dT%H%M%SZ}"
    except (ValueError, OverflowError):
        raise denied("The request needs a valid x-amz-date or Date header.") from None


def check_time(signed: Signed, now: datetime) -> None:
    """Raises S3Error: too far from now, expired, or of another day than its key."""
    try:
        date = datetime.fromisoformat(signed.date)
    except ValueError:
        raise denied("The date of the signature is not valid.") from None
    if not signed.date.startswith(signed.scope.day):
        raise S3Error("SignatureDoesNotMatch", "The day of the credential is not that of the request.")
    early = date - now
    if early > MAX_SKEW or (signed.expires_seconds is None and -early > MAX_SKEW):
        raise S3Error(
            "RequestTimeTooSkewed",
            "The difference between the time of the request and the current time is too large."
            " Set the clock.",
            details={"RequestTime": signed.date, "ServerTime": f"{now:%Y-%m-%dT%H:%M:%SZ}"},
        )
    if signed.expires_seconds is not None and now > date + timedelta(seconds=signed.expires_seconds):
        raise denied("Request has expired.")


def check_headers(signed: Signed, headers: Mapping[str, str]) -> None:
    """Raises S3Error unless the host and every header that S3 understands is signed: the holder of a
    presigned URL must not be able to add a copy source, an ACL or an encryption key to it.
    """
    names = set(signed.headers)
    unsigned = sorted(each for each in headers if each.startswith("x-amz-") and each not in names)
    if "host" not in names:
        unsigned.append("host")
    if signed.is_presigned and "content-md5" in headers and "content-md5" not in names:
        unsigned.append("content-md5")
    if unsigned:
        raise S3Error(
            "AccessDenied",
            "There were headers present in the request which were not signed.",
            details={"HeadersNotSigned": ", ".join(unsigned)[:500]},
        )


def verify(signed: Signed, incoming: Incoming, key: bytes) -> None:
    """Raises S3Error unless the signature is of this request. Takes the same time for any wrong signature."""
    if not _SIGNATURE.fullmatch(signed.signature):
        raise mismatch()
    paths = [quote_from_bytes(incoming.path, safe="/-_.~")]
    as_sent = incoming.raw_path.decode("latin-1")
    if as_sent != paths[0]:
        paths.append(as_sent)  # of clients that escape less
    for path in paths:
        expected = sign(key, string_to_sign(signed, canonical_request(signed, incoming, path)))
        if hmac.compare_digest(expected, signed.signature):
            return
    raise mismatch()


def mismatch() -> S3Error:
    return S3Error(
        "SignatureDoesNotMatch",
        "The signature of the request is not the one computed here. Check the secret and how it is signed.",
    )


def canonical_request(signed: Signed, incoming: Incoming, path: str) -> str:
    query = sorted(
        (quote_from_bytes(name, safe="-_.~"), quote_from_bytes(value, safe="-_.~"))
        for name, value in incoming.query
        if name != SIGNATURE_NAME.encode() or not signed.is_presigned
    )
    headers = "".join(f"{name}:{_single_spaced(incoming.headers.get(name, ''))}\n" for name in signed.headers)
    lines = [
        *(incoming.method, path or "/", "&".join(f"{name}={value}" for name, value in query)),
        *(headers, ";".join(signed.headers), signed.payload),
    ]
    return "\n".join(lines)


def _single_spaced(value: str) -> str:
    return _SPACES.sub(" ", value.strip()) if "  " in value else value.strip()


def string_to_sign(signed: Signed, request: str) -> str:
    digest = hashlib.sha256(request.encode("latin-1", "replace")).hexdigest()
    return f"{ALGORITHM}\n{signed.date}\n{signed.scope}\n{digest}"


def sign(key: bytes, text: str) -> str:
    return hmac.digest(key, text.encode(), "sha256").hex()


def signing_key(secret: str, day: str, region: str) -> bytes:
    """Return the key that signs the requests of a day."""
    key = f"AWS4{secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _malformed(what: str) -> S3Error:
    return S3Error("AuthorizationHeaderMalformed", f"The Authorization header {what}.")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
