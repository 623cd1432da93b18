"""Object storage as `neo` calls it: an S3 client that signs as the signed-in account, and its errors.

The key is a temporary one of the account: it is kept in memory alone and renewed while a command runs. The
files and variables of the AWS CLI are not read, so a command never signs as somebody else by accident;
`--env-key` asks for AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL. It is slow to import.
"""

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from botocore.credentials import Credentials, RefreshableCredentials
from botocore.exceptions import BotoCoreError, HTTPClientError
from botocore.exceptions import ClientError as S3Error
from botocore.exceptions import ConnectionError as S3ConnectionError

from neocloud.client.connection import Client
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile
from neocloud.client.s3 import s3_client
from neocloud.core import contract
from neocloud.core.s3_calls import S3

if TYPE_CHECKING:
    from neocloud.messages.neocloud.storage.v1 import TemporaryKey

ISSUE = "neocloud.storage.v1.TemporaryKeyService/Issue"
KEY_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL"
DEFAULT_REGION = "eu-north1"
ATTEMPTS = 5
CHECKSUM = "CRC64NVME"
"""The checksum of whole objects, also of those in parts, so that a file can be compared with it."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_CODES: Mapping[str, str] = {
    "AccessDenied": "PERMISSION_DENIED",
    "InvalidAccessKeyId": "PERMISSION_DENIED",
    "SignatureDoesNotMatch": "PERMISSION_DENIED",
    "403": "PERMISSION_DENIED",
    "NoSuchBucket": "NOT_FOUND",
    "NoSuchKey": "NOT_FOUND",
    "NoSuchUpload": "NOT_FOUND",
    "404": "NOT_FOUND",
    "QuotaExceeded": "RESOURCE_EXHAUSTED",
    "SlowDown": "UNAVAILABLE",
    "ServiceUnavailable": "UNAVAILABLE",
    "503": "UNAVAILABLE",
}

PERMISSIONS: Mapping[str, str] = {
    "ListBuckets": "storage.buckets.list",
    "ListObjects": "storage.objects.list",
    "ListObjectsV2": "storage.objects.list",
    "ListObjectVersions": "storage.objects.list",
    "GetObject": "storage.objects.get",
    "HeadObject": "storage.objects.get",
    "PutObject": "storage.objects.create",
    "CopyObject": "storage.objects.create",
    "CreateMultipartUpload": "storage.objects.create",
    "UploadPart": "storage.objects.create",
    "CompleteMultipartUpload": "storage.objects.create",
    "DeleteObject": "storage.objects.delete",
    "DeleteObjects": "storage.objects.delete",
}
"""The permission that each call of S3 needs; the answer of a refused one does not name it."""


def issue_key(client: Client, project_id: str, lifetime: timedelta | None = None) -> "TemporaryKey":
    """Return a TemporaryKey of the signed-in account."""
    request: dict[str, object] = {"parent_id": project_id}
    if lifetime is not None:
        request["lifetime"] = f"{int(lifetime.total_seconds())}s"
    return client.call(ISSUE, request)


def endpoint_of(key: "TemporaryKey", profile: Profile, api: str) -> str:
    """Return the URL of object storage for this machine. `api` is where the gRPC API is reached."""
    host = urlsplit(f"//{api}").hostname or ""
    if profile.home or host in _LOOPBACK:
        if key.endpoint:
            return f"http://{key.endpoint}"
        raise ClientError(
            "UNAVAILABLE", "The object gateway does not run yet, or does not answer", "See `neo status`"
        )
    if key.tls_port:
        return f"https://{f'[{host}]' if ':' in host else host}:{key.tls_port}"
    raise ClientError(
        "UNAVAILABLE",
        f"The cloud at {host} serves object storage on its own machine only",
        "Ask its operator to open it: `neo up --listen ADDRESS`",
    )


def s3_of(client: Client, profile: Profile, project_id: str, lifetime: timedelta | None = None) -> S3:
    """Return an S3 client that signs as the signed-in account."""
    key = issue_key(client, project_id, lifetime)
    credentials = RefreshableCredentials.create_from_metadata(
        _metadata(key), lambda: _metadata(issue_key(client, project_id, lifetime)), "neo"
    )
    url = endpoint_of(key, profile, client.endpoint)
    return s3_client(credentials, url, key.region, profile.ca_file, attempts=ATTEMPTS)


def s3_of_environment() -> S3:
    """Return an S3 client that signs with the key in the environment, and finds the cloud by it."""
    missing = [name for name in (*KEY_VARIABLES, ENDPOINT_VARIABLE) if not os.environ.get(name)]
    if missing:
        raise ClientError(
            "UNAUTHENTICATED",
            f"--env-key needs {', '.join(missing)}",
            "`neo client-config s3` shows how to set them; without --env-key you sign as yourself",
        )
    credentials = Credentials(*(os.environ[name] for name in KEY_VARIABLES))
    region = os.environ.get("AWS_REGION", "") or DEFAULT_REGION
    ca_file = os.environ.get("AWS_CA_BUNDLE", "")
    return s3_client(credentials, os.environ[ENDPOINT_VARIABLE], region, ca_file, attempts=ATTEMPTS)


def _metadata(key: "TemporaryKey") -> dict[str, str | None]:
    expires_at = contract.to_datetime(key.expires_at).isoformat()
    secret = {"access_key": key.aws_access_key_id, "secret_key": key.secret}
    return {**secret, "token": None, "expiry_time": expires_at}


def sdk_key(key: "TemporaryKey") -> dict[str, object]:
    """Return a TemporaryKey in the form that AWS SDKs read from a server."""
    names = {"AccessKeyId": key.aws_access_key_id, "SecretAccessKey": key.secret, "Token": ""}
    return {**names, "Expiration": f"{contract.to_datetime(key.expires_at):%Y-%m-%dT%H:%M:%SZ}"}


@contextmanager
def s3_errors(what: object) -> Generator[None, None, None]:
    """Raise errors of S3 in the body as ClientError; `what` is the bucket or object in question."""
    try:
        yield
    except (S3Error, BotoCoreError) as error:
        raise translated(error, what) from error


_UNDELETE = "One that was deleted is brought back with `neo storage bucket undelete NAME`"


def translated(error: Exception, what: object) -> ClientError:
    if not isinstance(error, S3Error):
        is_away = isinstance(error, (S3ConnectionError, HTTPClientError))
        code = "UNAVAILABLE" if is_away else "UNKNOWN"
        return ClientError(code, f"{what}: {error}", "See `neo status`" if is_away else "")
    said = error.response.get("Error", {})
    code = str(said.get("Code", ""))
    status = _CODES.get(code, "UNKNOWN")
    message = str(said.get("Message", "")) or code
    if code in ("404", "NoSuchKey"):
        return ClientError(status, f"There is no object {what}")
    if code == "NoSuchBucket":
        hint = f"`neo storage ls` lists the buckets. {_UNDELETE}"
        return ClientError(status, f"There is no bucket {what}", hint)
    needed = PERMISSIONS.get(str(error.operation_name), "")
    if code in ("403", "AccessDenied") and needed:
        role = "storage.viewer" if needed.endswith((".get", ".list")) else "storage.objects.editor"
        hint = f"Ask an admin of the tenant for a role that has it, such as {role}"
        return ClientError(status, f'{what}: access denied; it needs the permission "{needed}"', hint)
    if code == "403":
        message = "you have no right to it"
    return ClientError(status, f"{what}: {message}")
