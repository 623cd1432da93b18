"""Signs requests to S3 endpoints, by the signer of botocore."""

from collections.abc import Mapping

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials

from neocloud.objects.endpoints.types import Endpoint

UNSIGNED = "UNSIGNED-PAYLOAD"


class _UnsignedBody(S3SigV4Auth):
    """Bodies are not part of the signature: their digests are checked where they are known."""

    def payload(self, request: AWSRequest) -> str:
        return UNSIGNED


class Signer:
    def __init__(self, endpoint: Endpoint) -> None:
        """Without an access key, requests are not signed."""
        self._signer = None
        if endpoint.access_key_id:
            credentials = ReadOnlyCredentials(endpoint.access_key_id, endpoint.secret, None)
            self._signer = _UnsignedBody(credentials, "s3", endpoint.region)

    def sign(self, method: str, url: str, headers: Mapping[str, str]) -> dict[str, str]:
        """Return all headers to send."""
        request = AWSRequest(method=method, url=url, headers=dict(headers))
        if self._signer is not None:
            self._signer.add_auth(request)
        return {str(name): str(value) for name, value in request.headers.items()}
