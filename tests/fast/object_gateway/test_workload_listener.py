"""The object gateway as workloads reach it: over TLS, at an address that the machine gets later."""

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest

from neocloud.control_plane.workload_storage import WorkloadStorage, workload_storage
from neocloud.core.clock import SystemClock
from neocloud.object_gateway.__main__ import listen_to_workloads, settings_of, workload_server
from neocloud.settings.settings import Settings

NAME = "storage.eu-north1.neocloud.internal"


@pytest.fixture
def storage(tmp_path: Path) -> WorkloadStorage:
    return workload_storage(Settings(home=tmp_path), SystemClock())


def test_it_listens_where_the_machine_has_no_address_yet(storage: WorkloadStorage, tmp_path: Path) -> None:
    settings = settings_of(["--home", str(tmp_path), "--api", "127.0.0.1:1", *storage.arguments()])
    (listener,) = listen_to_workloads(settings)
    with listener:
        assert listener.getsockname() == (str(storage.service.address), storage.service.target_port)
    assert listen_to_workloads(settings_of(["--home", str(tmp_path), "--api", "127.0.0.1:1"])) == []


def test_it_needs_a_certificate(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        settings_of(["--home", str(tmp_path), "--api", "127.0.0.1:1", "--workload-host", "169.254.255.1"])


async def test_it_answers_over_tls_and_takes_no_connection_from_others(
    storage: WorkloadStorage, tmp_path: Path
) -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    settings = settings_of(["--home", str(tmp_path), "--api", "127.0.0.1:1", *storage.arguments()])
    app: Any = answer
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    first, second = (workload_server(app, settings, listener) for _ in range(2))
    assert first.connections is not second.connections
    running = asyncio.create_task(first.server.serve(sockets=[listener]))
    await first.server.is_listening.wait()
    try:
        trust = ssl.create_default_context(cafile=storage.certificate.authority)
        async with httpx.AsyncClient(verify=trust, trust_env=False) as client:
            url = f"https://127.0.0.1:{listener.getsockname()[1]}/"
            found = await client.get(url, extensions={"sni_hostname": NAME})
            assert found.status_code == 204
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                async with httpx.AsyncClient(trust_env=False) as outsider:
                    await outsider.get(url, extensions={"sni_hostname": NAME})
    finally:
        first.server.end()
        await running
