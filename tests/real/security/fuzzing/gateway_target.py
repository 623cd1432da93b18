"""A gateway with a mock engine and two tenants: one attacks, the other must not notice."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc
import httpx
import psutil
from starlette.routing import Route

from neocloud.core import contract
from neocloud.core.clock import SystemClock
from neocloud.model_gateway.api.lengths import INPUT_FIELD
from neocloud.model_gateway.composition import Gateway
from neocloud.model_gateway.metering.ledger import open_ledger
from neocloud.model_gateway.settings import GatewaySettings
from neocloud.testing.gateway import (
    EngineProcess,
    FakeControlPlane,
    GatewayProcess,
    engine_process,
    gateway_process,
    route,
)
from neocloud.testing.mock_engine import Behaviour
from tests.real.security.fuzzing.gateway_requests import Reachable
from tests.real.security.fuzzing.target import MARKER

VICTIMS_MODEL = "victims-engine-name"
JOBS, MODELS = "neocloud.tuning.v1.FineTuningJobService", "neocloud.inference.v1.ModelService"
METADATA = {"id": "finetuningjob-a", "parent_id": "project-a", "name": "a"}


class ControlPlane(FakeControlPlane):
    """Knows one fine-tuning job and one model, whatever is asked for."""

    def add_to(self, server: grpc.Server) -> None:
        super().add_to(server)
        for service in (JOBS, MODELS):
            paths = [path for path in contract.methods() if path.startswith(f"{service}/")]
            methods = {path.rpartition("/")[2]: _handler(path) for path in paths}
            handler = grpc.method_handlers_generic_handler(service, methods)
            server.add_generic_rpc_handlers((handler,))


def _handler(path: str) -> grpc.RpcMethodHandler:
    rpc = contract.method(path)
    answer = rpc.output()
    names = answer.DESCRIPTOR.fields_by_name
    if "items" in names and path.endswith("/List"):
        answer.items.add().metadata.CopyFrom(contract.from_dict(type(answer.items.add().metadata), METADATA))
    elif "metadata" in names and "spec" in names:
        answer.metadata.CopyFrom(contract.from_dict(type(answer.metadata), METADATA))
    elif "resource_id" in names:
        answer.resource_id = METADATA["id"]

    def serve(request: Any, context: grpc.ServicerContext) -> Any:
        return answer

    return grpc.unary_unary_rpc_method_handler(serve, rpc.input.FromString, rpc.output.SerializeToString)


@dataclass
class Target:
    gateway: GatewayProcess
    engine: EngineProcess
    reachable: Reachable
    process: psutil.Process

    @property
    def address(self) -> str:
        return self.gateway.url.removeprefix("http://")

    def log(self) -> str:
        return (self.gateway.home / "gateway.log").read_text(errors="replace")


@contextmanager
def target(home: Path) -> Iterator[Target]:
    control_plane = ControlPlane()
    control_plane.add_caller("key-b", tenant="tenant-b", projects=["project-b"])
    control_plane.add_caller("key-both", tenant="tenant-a", projects=["project-a", "project-c"])
    models_api = ["inference.models.list", "inference.files.get", "inference.files.list"]
    control_plane.add_caller("key-viewer", tenant="tenant-a", projects=["project-a"], permissions=models_api)
    with (
        engine_process(Behaviour(tokens=4)) as engine,
        gateway_process(home, "--max-body-bytes", "2000000", control_plane=control_plane) as gateway,
    ):
        both: dict[str, Any] = {"replicas": [engine.address]}
        gateway.set_routes(
            route("bank", engine_name="mock", adapters={"tuned": [engine.address]}, **both),
            route("vectors", engine_name="mock", task="EMBED", **both),
            route("asleep"),
            route("victims", engine_name=VICTIMS_MODEL, tenant="tenant-b", project="project-b", **both),
        )
        keys = ("key-a", "key-a", "key-both", "key-viewer", "unknown")
        reachable = Reachable(keys, tuple(_furnish(gateway)), _sign_in(gateway))
        yield Target(gateway, engine, reachable, psutil.Process(gateway.process.pid))


def _furnish(gateway: GatewayProcess) -> Iterator[str]:
    """Make files and a batch, of the attacker and of the victim. Return the ids."""
    yield from ("finetuningjob-a", "bank", "tuned", "asleep", "victims", "no-such-id")
    for key, content in (("key-a", "own"), ("key-b", MARKER)):
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=gateway.url, headers=headers, timeout=30) as client:
            for purpose in ("batch", "fine-tune"):
                file = {"file": (f"{content}.jsonl", f'{{"custom_id": "{content}"}}\n'.encode())}
                answer = client.post("/v1/files", data={"purpose": purpose}, files=file)
                yield answer.raise_for_status().json()["id"]
                if purpose == "batch":
                    batch = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
                    batch |= {"input_file_id": answer.json()["id"], "metadata": {"note": content}}
                    yield client.post("/v1/batches", json=batch).raise_for_status().json()["id"]


def _sign_in(gateway: GatewayProcess) -> str:
    code = httpx.post(f"{gateway.url}/v1/chat/links", headers=gateway.headers, timeout=60).json()["code"]
    headers = {"Host": "localhost", "Origin": "http://localhost"}
    answer = httpx.post(f"{gateway.url}/chat/session", headers=headers, json={"code": code}, timeout=60)
    return answer.raise_for_status().cookies["neocloud_chat_80"]


def all_routes(home: Path) -> list[tuple[str, str]]:
    """Return method and path of each route that a gateway has, with names in braces.

    Of the page's files, which are served alike, only one.
    """
    clock = SystemClock()
    ledger = open_ledger(home / "ledger.db", clock)
    try:
        settings = GatewaySettings(home, api="127.0.0.1:1")
        served = Gateway(settings, cast(Any, None), ledger, clock).app.routes
    finally:
        ledger.close()
    found = {("POST", path) for path in INPUT_FIELD}
    for each in served:
        assert isinstance(each, Route), f"{each} needs a strategy of its own"
        path = each.path.replace(":path}", "}")
        found |= {(method, path) for method in each.methods or () if method != "HEAD"}
    files = sorted(one for one in found if one[1].startswith("/chat/static/"))
    return sorted(found.difference(files[1:]))
