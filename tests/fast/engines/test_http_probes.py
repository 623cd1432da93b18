"""Probes over HTTP and TCP: when they are run, that only the status counts, and who is left alone."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from neocloud.engines.base import Reference
from neocloud.engines.manifest import Pod
from neocloud.engines.podman.probes import Prober
from neocloud.testing.waiting import until

POD = Reference("Pod", "one", "web")


class Web:
    """A server that answers as it is set; `status` 0: it accepts and says nothing, as one that hangs."""

    def __init__(self) -> None:
        self.status = 200
        self.paths: list[str] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        self.paths.append(line.decode().split(" ")[1])
        if not self.status:
            await reader.read()
        else:
            writer.write(f"HTTP/1.1 {self.status} Said\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()


@pytest_asyncio.fixture
async def web() -> AsyncIterator[Web]:
    web = Web()
    server = await asyncio.start_server(web.serve, "127.0.0.1", 0)
    web.port = server.sockets[0].getsockname()[1]
    yield web
    server.close()


def pod(web: Web, **probes: Any) -> Pod:
    action = {"httpGet": {"path": "/health", "port": web.port}, "periodSeconds": 0.02, "timeoutSeconds": 0.2}
    container = {
        "name": "web",
        "image": "busybox",
        **{name: {**action, **more} for name, more in probes.items()},
    }
    metadata = {"name": "web", "namespace": "one"}
    return Pod.from_dict({"metadata": metadata, "spec": {"containers": [container]}})


async def never_run(*_: Any) -> int:
    raise AssertionError("An HTTP probe runs no command.")


@pytest.mark.parametrize(
    ("status", "is_ready"), [(200, True), (302, True), (404, False), (503, False), (0, False)]
)
async def test_only_the_status_counts(web: Web, status: int, *, is_ready: bool) -> None:
    web.status = status
    restarts: list[Reference] = []
    prober = Prober(never_run, lambda pod: asyncio.sleep(0, restarts.append(pod)))
    prober.follow(pod(web, readinessProbe={}), "127.0.0.1")
    await prober.first_answers()
    state = next(iter(vars(prober)["_states"].values()))
    assert bool(state.last_success) is is_ready and web.paths[0] == "/health"
    prober.close()


async def test_a_container_that_starts_is_left_alone_and_one_that_hangs_later_is_not(web: Web) -> None:
    web.status = 503
    restarts: list[Reference] = []
    prober = Prober(never_run, lambda pod: asyncio.sleep(0, restarts.append(pod)))
    startup = {"failureThreshold": 1000}
    prober.follow(pod(web, livenessProbe={"failureThreshold": 2}, startupProbe=startup), "127.0.0.1")
    await until(lambda: len(web.paths) > 10)
    assert not restarts
    web.status = 200
    seen = len(web.paths)
    await until(lambda: len(web.paths) > seen + 3)
    web.status = 0
    await until(lambda: restarts == [POD])
    prober.close()


async def test_a_port_that_is_open_is_probed_seldom_and_at_once_after_a_restart() -> None:
    """Each connection costs a process of sshd."""
    connections: list[float] = []
    loop = asyncio.get_running_loop()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(loop.time())
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    action = {"tcpSocket": {"port": server.sockets[0].getsockname()[1]}, "periodSeconds": 0.02}
    container = {"name": "ssh", "image": "busybox", "readinessProbe": action}
    metadata = {"name": "web", "namespace": "one"}
    prober = Prober(never_run, lambda _: asyncio.sleep(0))
    prober.follow(Pod.from_dict({"metadata": metadata, "spec": {"containers": [container]}}), "127.0.0.1")
    await prober.first_answers()
    began = datetime.now(UTC)
    assert prober.is_ready(POD, {"ssh": began - timedelta(seconds=5)})
    await asyncio.sleep(0.3)  # 15 periods
    assert len(connections) == 1
    assert not prober.is_ready(POD, {"ssh": began}), "it was started again, and has not answered since"
    await until(lambda: prober.is_ready(POD, {"ssh": began}))
    assert len(connections) == 2
    prober.close()
    server.close()
