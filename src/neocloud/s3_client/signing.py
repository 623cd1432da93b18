# pyright: standard
"""Signs requests to S3 endpoints, by the signer of botocore.

It is imported with the first endpoint that wants signatures: it takes 8 MiB of memory, which a gateway
without transfers saves.
"""

from collections.abc import Mapping
from typing import Any

from neocloud.s3_client.types import Endpoint

UNSIGNED = "UNSIGNED-PAYLOAD"


class Signer:
    def __init__(self, endpoint: Endpoint) -> None:
        """Without an access key, requests are not signed."""
        self._signer = _signer(endpoint) if endpoint.access_key_id else None

    def sign(self, method: str, url: str, headers: Mapping[str, str]) -> dict[str, str]:
        """Return all headers to send."""
        if self._signer is None:
            return dict(headers)
        from botocore.awsrequest import AWSRequest  # noqa: PLC0415

        request = AWSRequest(method=method, url=url, headers=dict(headers))
        self._signer.add_auth(request)
        return {str(name): str(value) for name, value in request.headers.items()}


def _signer(endpoint: Endpoint) -> Any:
    from botocore.auth import S3SigV4Auth  # noqa: PLC0415
    from botocore.awsrequest import AWSRequest  # noqa: PLC0415
    from botocore.credentials import ReadOnlyCredentials  # noqa: PLC0415

    class UnsignedBody(S3SigV4Auth):
        """Bodies are not part of the signature: their digests are checked where they are known."""

        def payload(self, request: AWSRequest) -> str:
            return UNSIGNED

    credentials = ReadOnlyCredentials(endpoint.access_key_id, endpoint.secret, None)
    return UnsignedBody(credentials, "s3", endpoint.region)
