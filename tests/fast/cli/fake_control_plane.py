"""A control plane in memory that speaks the contract over real gRPC on loopback, for tests of clients.

Each test declares the methods it serves; all others answer UNIMPLEMENTED, as on the real server.
Requests are recorded, so that a test can check them.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import grpc

from neocloud.core import contract, releases

EXCHANGE = "nebius.iam.v1.TokenExchangeService/Exchange"
CLUSTERS = "neocloud.slurm.v1.ClusterService"
FIND = "neocloud.search.v1.SearchService/Find"
PROJECT, TENANT = "project-e00risk", "tenant-e00bank"


@dataclass
class FakeServer:
    endpoint: str = ""
    methods: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    requests: list[tuple[str, Any, dict[str, str]]] = field(default_factory=list)
    tokens: int = 0
    refused_tokens: set[str] = field(default_factory=set)
    version: str = ""
    """The server's version, which its answers name; "" as in servers of before."""

    def serve(self, path: str, answer: Any) -> None:
        """Answer `path` with a message, or with what a function of the request returns or raises."""
        self.methods[path] = answer if callable(answer) else lambda request: answer

    def asked(self, path: str) -> list[Any]:
        return [request for asked, request, _ in self.requests if asked == path]

    def headers(self, path: str) -> dict[str, str]:
        """Return the headers of the last call of `path`."""
        return [headers for asked, _, headers in self.requests if asked == path][-1]

    def exchange(self, request: Any) -> Any:
        self.tokens += 1
        return contract.method(EXCHANGE).output(
            access_token=f"token-{self.tokens}", token_type="Bearer", expires_in=3600
        )

    def handle(self, path: str, request: Any, context: grpc.ServicerContext) -> Any:
        headers = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        self.requests.append((path, request, headers))
        own = ((releases.HEADER, self.version),) if self.version else ()
        context.set_trailing_metadata(own)
        try:
            if (
                path != EXCHANGE
                and headers.get("authorization", "").removeprefix("Bearer ") in self.refused_tokens
            ):
                raise contract.unauthenticated("The token is not valid.")
            return self.methods[path](request)
        except contract.ApiError as error:
            details = ("grpc-status-details-bin", error.status().SerializeToString())
            context.set_trailing_metadata((details, *own))
            codes = {code.value[0]: code for code in grpc.StatusCode}
            context.abort(codes[int(error.code)], error.message)


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, cloud: FakeServer) -> None:
        self.cloud = cloud

    def service(self, handler_call_details: Any) -> Any:
        path = handler_call_details.method.removeprefix("/")
        if path not in self.cloud.methods:
            return None
        rpc = contract.method(path)
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self.cloud.handle(path, request, context),
            request_deserializer=rpc.input.FromString,
            response_serializer=rpc.output.SerializeToString,
        )


@contextmanager
def running_server() -> Iterator[FakeServer]:
    cloud = FakeServer()
    cloud.serve(EXCHANGE, cloud.exchange)
    server = grpc.server(ThreadPoolExecutor(4), handlers=[_Handler(cloud)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    cloud.endpoint = f"127.0.0.1:{port}"
    try:
        yield cloud
    finally:
        server.stop(None).wait()


def operation(resource_id: str, *, done: bool = True, code: int = 0, message: str = "") -> Any:
    made = contract.message("nebius.common.v1.Operation")(
        id="operation-e00x", resource_id=resource_id, created_at=datetime(2026, 11, 1, tzinfo=UTC)
    )
    if done:
        made.status.SetInParent()
        made.status.code, made.status.message = code, message
    return made


def cluster(name: str = "bank", *, state: str = "READY", workers: int = 2, **status: Any) -> Any:
    return contract.from_dict(
        contract.message("neocloud.slurm.v1.Cluster"),
        {
            "metadata": {
                "id": f"slurmcluster-e00{name}",
                "parent_id": PROJECT,
                "name": name,
                "resource_version": 3,
            },
            "spec": {
                "node_sets": [
                    {"name": "worker", "platform": "cpu-e2", "preset": "2vcpu-8gb", "count": workers}
                ],
                "shared_root": {"size_gibibytes": 64},
                "login": {"ssh_public_keys": ["ssh-ed25519 AAAAkey you@host"]},
            },
            "status": {"state": state, **status},
        },
    )


def serve_clusters(cloud: FakeServer, *clusters: Any) -> None:
    """Get, GetByName and List of these clusters."""
    by_id = {item.metadata.id: item for item in clusters}
    by_name = {item.metadata.name: item for item in clusters}

    def one(found: dict[str, Any], key: str) -> Any:
        if key not in found:
            raise contract.not_found("cluster", key)
        return found[key]

    cloud.serve(f"{CLUSTERS}/Get", lambda request: one(by_id, request.id))
    cloud.serve(f"{CLUSTERS}/GetByName", lambda request: one(by_name, request.name))
    cloud.serve(f"{CLUSTERS}/List", contract.method(f"{CLUSTERS}/List").output(items=clusters))


def serve_search(cloud: FakeServer, *found: Any, unreadable_kinds: Sequence[str] = ()) -> None:
    """Find among these resources, given as `found_resource`."""
    rpc = contract.method(FIND)

    def matches(item: Any, request: Any) -> bool:
        return (
            item.kind not in unreadable_kinds
            and (not request.kinds or item.kind in request.kinds)
            and (not request.parent_ids or item.parent_id in request.parent_ids)
            and (not request.ids or item.id in request.ids)
            and (not request.name or item.name == request.name)
            and item.name.startswith(request.name_prefix)
        )

    def search(request: Any) -> Any:
        kinds = [kind for kind in request.kinds if kind in unreadable_kinds]
        return rpc.output(items=[each for each in found if matches(each, request)], unreadable_kinds=kinds)

    cloud.serve(FIND, search)


def found_resource(kind: str, identifier: str, name: str, parent_id: str = PROJECT) -> Any:
    resource = contract.message("neocloud.search.v1.FoundResource")
    return resource(kind=kind, id=identifier, name=name, parent_id=parent_id)
