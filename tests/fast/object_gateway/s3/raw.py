"""Requests by hand: signed by botocore's signer, sent byte by byte, so that they can be spoilt."""

from urllib.parse import urlsplit

from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from neocloud.testing.object_control_plane import Account
from tests.fast.object_gateway.s3.served import REGION, Served


def signed_head(
    s3: Served,
    method: str,
    target: str,
    headers: dict[str, str] | None = None,
    *,
    account: Account | None = None,
    payload: str = "UNSIGNED-PAYLOAD",
    more: dict[str, str] | None = None,
) -> bytes:
    """Return the head of a request that closes the connection. `more` are headers that are not signed."""
    who = account or s3.owner
    given = {"X-Amz-Content-SHA256": payload, **(headers or {})}
    request = AWSRequest(method, s3.url + target, headers=given)

    class Signer(S3SigV4Auth):
        def payload(self, request: AWSRequest) -> str:
            return payload

    Signer(Credentials(who.aws_access_key_id, who.secret), "s3", REGION).add_auth(request)
    lines = [f"{method} {target} HTTP/1.1", f"Host: {s3.address[0]}:{s3.address[1]}"]
    lines += [f"{name}: {value}" for name, value in {**dict(request.headers.items()), **(more or {})}.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def presigned(
    s3: Served, method: str, target: str, *, expires: int = 60, account: Account | None = None
) -> str:
    """Return the path and query of a presigned URL."""
    who = account or s3.owner
    request = AWSRequest(method, s3.url + target)
    credentials = Credentials(who.aws_access_key_id, who.secret)
    S3SigV4QueryAuth(credentials, "s3", REGION, expires=expires).add_auth(request)
    parts = urlsplit(request.url)
    return f"{parts.path}?{parts.query}"


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def code_of(answer: bytes) -> str:
    return answer.partition(b"<Code>")[2].partition(b"</Code>")[0].decode()
