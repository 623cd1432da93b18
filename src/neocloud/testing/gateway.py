# pyright: standard, reportMissingModuleSource=false
"""Run a gateway as a process, with a control plane and engines of a test behind it.

with gateway_process(home) as gateway:
    gateway.route("bank", replicas=[engine.address])
    httpx.post(f"{gateway.url}/v1/chat/completions", headers=gateway.headers, ...)
"""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import httpx
from google.protobuf.message import Message

from neocloud.core import contract
from neocloud.data_plane.metrics_keys import load_or_make_gateway_scrape_key
from neocloud.messages.neocloud.inference.v1 import (
    AdmitRequest,
    AdmitResponse,
    ListRoutesRequest,
    ReleaseReport,
    ReportTrafficRequest,
)
from neocloud.model_gateway.control_plane import SERVICE
from neocloud.testing.mock_engine import Behaviour
from neocloud.testing.waiting import wait_until

PACKAGE = SERVICE.rpartition(".")[0]
PERMISSIONS = [
    "inference.deployments.invoke",
    "inference.models.list",
    *(f"inference.files.{verb}" for verb in ("create", "get", "list", "delete")),
    *(f"inference.batches.{verb}" for verb in ("create", "get", "list", "cancel")),
    *(f"inference.vectorStores.{verb}" for verb in ("create", "get", "list", "update", "delete")),
    *(f"inference.responses.{verb}" for verb in ("get", "delete")),
    *(f"inference.feedback.{verb}" for verb in ("list", "delete")),
    *(f"tuning.fineTuningJobs.{verb}" for verb in ("create", "get", "list", "cancel", "delete")),
]
START_SECONDS = 90.0
STOP_SECONDS = 30.0


class FakeControlPlane:
    """GatewayService in this process: with callers by token, the routes of a test, and reported traffic."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.version = 1
        self.routes: list[dict[str, object]] = []
        self.budgets: list[dict[str, object]] = []
        self.releases: list[dict[str, object]] = []
        self.release_reports: list[Any] = []
        self.callers: dict[str, AdmitResponse] = {}
        self.admits = 0
        self.traffic: list[Any] = []
        """The reports, oldest first."""

    def add_caller(
        self,
        token: str,
        *,
        tenant: str,
        projects: Sequence[str],
        permissions: Sequence[str] = PERMISSIONS,
        is_operator: bool = False,
    ) -> None:
        grants = [{"project_id": project, "permissions": list(permissions)} for project in projects]
        self.callers[token] = contract.from_dict(
            AdmitResponse,
            {
                "subject_id": f"subject-{token}",
                "tenant_id": tenant,
                "home_project_id": projects[0],
                "grants": grants,
                "proof": "proof-" + sha256(token.encode()).hexdigest(),
                "is_operator": is_operator,
            },
        )

    def set_routes(
        self,
        routes: Sequence[Mapping[str, object]],
        budgets: Sequence[Mapping[str, object]] = (),
        releases: Sequence[Mapping[str, object]] = (),
    ) -> None:
        with self._changed:
            self.routes = [dict(route) for route in routes]
            self.budgets = [dict(budget) for budget in budgets]
            self.releases = [dict(release) for release in releases]
            self.version += 1
            self._changed.notify_all()

    def add_to(self, server: grpc.Server) -> None:
        handlers = {
            "Admit": self._admit,
            "ListRoutes": self._list_routes,
            "ReportTraffic": self._report,
            "ReportRelease": self._report_release,
        }
        methods = {}
        for name, handler in handlers.items():
            rpc = contract.method(f"{SERVICE}/{name}")
            methods[name] = grpc.unary_unary_rpc_method_handler(
                handler, rpc.input.FromString, rpc.output.SerializeToString
            )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))

    def _admit(self, request: AdmitRequest, context: grpc.ServicerContext) -> AdmitResponse:
        self.admits += 1
        by_proof = {caller.proof: caller for caller in self.callers.values()}
        caller = self.callers.get(request.token) or by_proof.get(request.proof)
        if caller is None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no such token")
        answer = AdmitResponse()
        answer.CopyFrom(caller)
        if request.token:
            answer.renew_until.FromDatetime(datetime.now(UTC) + timedelta(hours=1))
        return answer

    def _list_routes(self, request: ListRoutesRequest, context: grpc.ServicerContext) -> Message:
        with self._changed:
            if request.version == str(self.version):
                self._changed.wait(min(request.wait_seconds, 1))
            content = {"version": str(self.version), "routes": self.routes, "budgets": self.budgets}
            content["releases"] = self.releases
            return _message("ListRoutesResponse", content)

    def _report(self, request: ReportTrafficRequest, context: grpc.ServicerContext) -> Message:
        self.traffic.append(contract.to_dict(request))
        return _message("ReportTrafficResponse", {})

    def _report_release(self, request: ReleaseReport, context: grpc.ServicerContext) -> Message:
        self.release_reports.append(contract.to_dict(request))
        return _message("ReportReleaseResponse", {})

    def reported(self, deployment_id: str, name: str) -> list[int]:
        """Return all reported values of a field."""
        items = [item for report in self.traffic for item in report.get("items", [])]
        return [int(item.get(name, 0)) for item in items if item["deployment_id"] == deployment_id]


def _message(name: str, content: Mapping[str, object]) -> Message:
    return contract.from_dict(contract.message(f"{PACKAGE}.{name}"), dict(content))


def route(
    name: str = "bank",
    *,
    replicas: Sequence[str] = (),
    tenant: str = "tenant-a",
    project: str = "project-a",
    adapters: Mapping[str, Sequence[str]] | None = None,
    adapter_errors: Mapping[str, str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return a deployment of the model `name`. `adapters`: addresses that have loaded one, by its name; the
    others could not for the reason in `adapter_errors`."""
    adapters = adapters or {}
    models = [{"name": name, "engine_name": more.pop("engine_name", name), "project_id": project}]
    models += [
        {"name": adapter, "engine_name": adapter, "project_id": project, "parent_name": name}
        for adapter in adapters
    ]
    ready = [
        {
            "name": f"{name}-{number}",
            "address": address,
            "is_ready": True,
            "adapters": [adapter for adapter, places in adapters.items() if address in places],
            "adapter_errors": {
                adapter: error
                for adapter, error in (adapter_errors or {}).items()
                if address not in adapters.get(adapter, ())
            },
        }
        for number, address in enumerate(replicas)
    ]
    return {
        "deployment_id": f"deployment-{name}",
        "tenant_id": tenant,
        "project_id": project,
        "state": "READY" if ready else "ASLEEP",
        "models": models,
        "replicas": ready,
        "context_length": 8192,
        "limits": {"tokens_per_minute": 10**12},
        "price": {"input": "1", "output": "2"},
        **more,
    }


@dataclass
class EngineProcess:
    address: str
    process: "subprocess.Popen[str]"

    def tell(self, **behaviour: object) -> dict[str, Any]:
        return httpx.post(f"http://{self.address}/mock", json=behaviour, timeout=60).json()

    def counts(self) -> dict[str, Any]:
        return httpx.get(f"http://{self.address}/mock", timeout=60).json()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def engine_process(behaviour: Behaviour | None = None, *, port: int = 0) -> Iterator[EngineProcess]:
    """A mock engine as a process, so that it can be killed."""
    arguments = [sys.executable, "-m", "neocloud.testing.mock_engine", "--port", str(port)]
    for name, value in vars(behaviour or Behaviour()).items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield EngineProcess(process.stdout.readline().strip(), process)
        finally:
            process.kill()


@dataclass
class GatewayProcess:
    home: Path
    url: str
    control_plane: FakeControlPlane
    token: str
    process: "subprocess.Popen[bytes]"
    arguments: list[str]
    stop_control_plane: Callable[[], object]

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def scrape_key(self) -> str:
        """Return the key of collectors of its metrics."""
        return load_or_make_gateway_scrape_key(self.home).value

    def set_routes(
        self,
        *routes: Mapping[str, object],
        budgets: Sequence[Mapping[str, object]] = (),
        releases: Sequence[Mapping[str, object]] = (),
    ) -> None:
        """Set the routes; return when the gateway serves by them."""
        self.control_plane.set_routes(routes, budgets, releases)
        file = self.home / "gateway" / "routes.json"
        version = str(self.control_plane.version)
        wait_until(
            lambda: file.exists() and json.loads(file.read_text()).get("version") == version,
            seconds=START_SECONDS,
        )

    def start(self) -> None:
        """Start it again after it has ended."""
        self.process = _start(self.arguments, self.url, self.home)


@contextmanager
def gateway_process(
    home: Path, *options: str, token: str = "key-a", control_plane: FakeControlPlane | None = None
) -> Iterator[GatewayProcess]:
    """Run a gateway with one caller, of tenant-a and project-a, and no routes."""
    with reserved_port() as port:
        yield from _gateway_process(home, port, options, token, control_plane or FakeControlPlane())


def _gateway_process(
    home: Path, port: int, options: Sequence[str], token: str, control_plane: FakeControlPlane
) -> Iterator[GatewayProcess]:
    control_plane.add_caller(token, tenant="tenant-a", projects=["project-a"])
    server = grpc.server(futures.ThreadPoolExecutor(8))
    control_plane.add_to(server)
    api = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    (home / "gateway").mkdir(parents=True, exist_ok=True)
    (home / "gateway" / "key").write_text("test-key")
    arguments = [sys.executable, "-m", "neocloud.model_gateway", "--home", str(home), "--api", api]
    arguments += ["--port", str(port), *options]
    url = f"http://127.0.0.1:{port}"
    gateway = GatewayProcess(
        home,
        url,
        control_plane,
        token,
        _start(arguments, url, home),
        arguments,
        lambda: server.stop(0).wait(),
    )
    try:
        yield gateway
    finally:
        gateway.process.terminate()
        try:
            gateway.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            gateway.process.kill()
            gateway.process.wait()
        server.stop(0)


def _start(arguments: list[str], url: str, home: Path) -> "subprocess.Popen[bytes]":
    with open(home / "gateway.log", "ab") as log:
        process = subprocess.Popen(arguments, stdout=log, stderr=log, env={**os.environ})

    def answers() -> bool:
        assert process.poll() is None, (home / "gateway.log").read_text()
        try:
            return httpx.get(f"{url}/health", timeout=60).status_code == 200
        except httpx.TransportError:
            return False

    wait_until(answers, seconds=START_SECONDS)
    return process


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a port that no other process is given. Connections are refused until a server listens.

    The port is bound, without listening. A server that sets SO_REUSEADDR can bind it as well.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def free_port() -> int:
    """Return a port that was free a moment ago. Another process may take it: tests use `reserved_port`."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]
