"""Sends a fuzzed request by gRPC or JSON, and says what is wrong with the answer."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import httpx

from tests.real.security.fuzzing.target import MARKER

PATIENCE_SECONDS = 60
"""No call of the fuzzer needs a hundredth of it; who waits longer has found a hang."""
BROKEN = frozenset({"INTERNAL", "UNKNOWN", "DEADLINE_EXCEEDED", "UNAVAILABLE", "DATA_LOSS", "CANCELLED"})
BROKEN_HTTP = frozenset({500, 502, 503, 504})
OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 256 << 20),
    ("grpc.max_metadata_size", 64 << 10),
)


@dataclass(frozen=True)
class Answer:
    code: str
    """gRPC's name of it, or the HTTP status."""
    text: bytes
    """All that the caller gets to see."""

    def complaint(self) -> str:
        """Return the defect of the answer; "" for none."""
        if self.code in BROKEN or (self.code.isdigit() and int(self.code) in BROKEN_HTTP):
            return f"{self.code}: {self.text[:500]!r}"
        if MARKER.encode() in self.text:
            return f"the answer reveals the other tenant: {self.text[:500]!r}"
        return ""


class Fronts:
    """One connection to each front."""

    def __init__(self, grpc_address: str, http_address: str) -> None:
        self._channel = grpc.insecure_channel(grpc_address, options=OPTIONS)
        self._http = httpx.Client(
            base_url=f"http://{http_address}", timeout=PATIENCE_SECONDS, trust_env=False
        )

    def close(self) -> None:
        self._channel.close()
        self._http.close()

    def by_grpc(self, path: str, body: bytes, token: str, headers: Mapping[str, str]) -> Answer:
        metadata = (("authorization", f"Bearer {token}"), *headers.items())
        try:
            answer = self._channel.unary_unary(f"/{path}")(body, metadata=metadata, timeout=PATIENCE_SECONDS)
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call)
            trailing: Any = error.trailing_metadata() or ()
            trailers = b"".join(
                value if isinstance(value, bytes) else value.encode() for _, value in trailing
            )
            return Answer(error.code().name, (error.details() or "").encode() + trailers)
        return Answer("OK", answer)

    def by_json(self, path: str, body: bytes, token: str, headers: Mapping[str, str]) -> Answer:
        sent = {"content-type": "application/json", "authorization": f"Bearer {token}", **headers}
        answer = self._http.post(f"/{path}", content=body, headers=sent)
        json.loads(answer.content)  # whatever is answered is JSON
        return Answer(str(answer.status_code), answer.content)
