"""Call a running control plane over gRPC, without the waiting and caching of the client."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import jwt

from neocloud.core import contract

DEADLINE_SECONDS = 60
_TYPE = "urn:ietf:params:oauth:token-type"


async def call(
    channel: grpc.aio.Channel, path: str, request: Any, metadata: Sequence[tuple[str, str]] = ()
) -> Any:
    """`path` as "nebius.compute.v1.DiskService/Get". Raises grpc.aio.AioRpcError."""
    rpc = contract.method(path)
    method = channel.unary_unary(
        f"/{path}",
        request_serializer=rpc.input.SerializeToString,
        response_deserializer=rpc.output.FromString,
    )
    return await method(request, metadata=tuple(metadata), timeout=DEADLINE_SECONDS)


async def sign_in(channel: grpc.aio.Channel, credentials: Mapping[str, Any]) -> str:
    """Return an access token for a service account's credentials, as `neo up` writes them."""
    key = credentials["subject-credentials"]
    claims = {"iss": key["iss"], "sub": key["sub"], "aud": "neocloud", "exp": int(time.time()) + 60}
    request = contract.message("nebius.iam.v1.ExchangeTokenRequest")(
        grant_type="urn:ietf:params:oauth:grant-type:token-exchange",
        requested_token_type=f"{_TYPE}:access_token",
        subject_token=jwt.encode(
            claims, key["private-key"], algorithm=key["alg"], headers={"kid": key["kid"]}
        ),
        subject_token_type=f"{_TYPE}:jwt",
    )
    return (await call(channel, "nebius.iam.v1.TokenExchangeService/Exchange", request)).access_token
