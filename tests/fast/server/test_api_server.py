"""Starting, stopping and wiring: what an operator and the author of a service see."""

import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from neocloud.core import contract
from neocloud.core.kind import Kind
from neocloud.core.readers import Subject
from neocloud.core.service import Method, Service
from neocloud.core.store import StoreError
from neocloud.server import (
    ApiServer,
    DescriptorError,
    Public,
    ServerError,
    Tls,
    api_server,
    ensure_certificate,
    listening,
)
from tests.control_plane import plain_dependencies
from tests.fast.server.conftest import ADMIN, PROJECT, PROJECT_KIND, Cloud, PermissionTable, TokenTable

NETWORK = Kind(
    message="nebius.vpc.v1.Network",
    rpc="nebius.vpc.v1.NetworkService",
    id_prefix="vpcnetwork",
    permission="vpc.networks",
    parent_kinds=(PROJECT_KIND,),
    initial_state="READY",
)


def server(cloud: Cloud, service: Service, **ports: Any) -> ApiServer:
    dependencies = plain_dependencies(cloud.store, cloud.clock)
    return ApiServer([service], TokenTable(), PermissionTable(), dependencies, **ports)


async def call(address: str, path: str, token: str = ADMIN, **fields: Any) -> Any:
    """A call by bare gRPC, without a client library in between."""
    rpc = contract.method(path)
    async with grpc.aio.insecure_channel(address) as channel:
        method = channel.unary_unary(f"/{path}", response_deserializer=rpc.output.FromString)
        return await method(
            rpc.input(**fields).SerializeToString(), metadata=(("authorization", f"Bearer {token}"),)
        )


async def test_a_kind_is_one_line(cloud: Cloud) -> None:
    """No code but the Kind above serves all six verbs."""
    one = server(cloud, Service("vpc", kinds=(NETWORK,)))
    await one.start()
    address, service = one.addresses.grpc, NETWORK.rpc
    try:
        named = {"parent_id": PROJECT, "name": "net-a"}
        made = await call(address, f"{service}/Create", metadata=named, spec={})
        assert made.HasField("status") and made.resource_id.startswith("vpcnetwork-")
        renamed = {"id": made.resource_id, "name": "net-b"}
        await call(address, f"{service}/Update", metadata=renamed)
        found = await call(address, f"{service}/GetByName", parent_id=PROJECT, name="net-b")
        assert found == await call(address, f"{service}/Get", id=made.resource_id)
        assert list((await call(address, f"{service}/List", parent_id=PROJECT)).items) == [found]
        await call(address, f"{service}/Delete", id=made.resource_id)
        assert not (await call(address, f"{service}/List", parent_id=PROJECT)).items
    finally:
        await one.stop(grace_seconds=0)


def plain_kinds() -> list[Kind]:
    """Every service of the contract with a Create and a Get, as the one line it would take."""
    return [
        Kind(rpcs["Get"].output.DESCRIPTOR.full_name, name, "thing", name.lower(), ("any",))
        for name, rpcs in ((n, {r.name: r for r in found}) for n, found in contract.services().items())
        if {"Create", "Get"} <= rpcs.keys()
    ]


async def test_most_kinds_of_the_contract_fit_the_generic_verbs(cloud: Cloud) -> None:
    fitting, others = [], []
    for kind in plain_kinds():
        try:
            server(cloud, Service("all", kinds=(kind,)))
            fitting.append(kind.message)
        except DescriptorError as error:
            others.append(str(error))
    assert len(fitting) >= 50
    assert all("Method" in reason for reason in others), others


@pytest.mark.parametrize(
    ("service", "words"),
    [
        (Service("s", kinds=(Kind("nebius.vpc.v1.Network", "no.Service", "x", "p", ()),)), "no.Service"),
        (
            Service("s", kinds=(Kind(NETWORK.message, NETWORK.rpc, "x", "p", (), initial_state="MELTED"),)),
            "MELTED",
        ),
        (Service("s", kinds=(NETWORK, NETWORK)), "claimed twice"),
        (Service("s", methods=(Method("no.Service/Do", None, ""),)), "no.Service/Do"),  # type: ignore[arg-type]
    ],
)
async def test_a_table_that_does_not_fit_the_contract_is_refused_at_start(
    cloud: Cloud, service: Service, words: str
) -> None:
    with pytest.raises(DescriptorError, match=words):
        server(cloud, service)


@pytest.mark.parametrize("which", ["grpc", "http"])
async def test_a_taken_port_is_a_clear_error(cloud: Cloud, which: str) -> None:
    taken = int(getattr(cloud.server.addresses, which).rpartition(":")[2])
    second = server(cloud, Service("none"), **{f"{which}_port": taken})
    with pytest.raises(ServerError, match=rf"Port {taken} on 127\.0\.0\.1 is taken.*choose another port"):
        await second.start()
    assert (await cloud.http.get("/healthz")).status_code == 200


async def test_a_server_that_cannot_be_made_leaves_no_port_open(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[socket.socket] = []

    def listen_on(addresses: Sequence[str], port: int) -> list[socket.socket]:
        opened.extend(listening.listen_on(addresses, port))
        return opened

    def refuse_to_serve(application: Any, listeners: Any, *others: Any) -> listening.HttpServer:
        if listeners == opened:
            raise ServerError("The certificate cannot be used.")
        return listening.HttpServer(application, listeners, *others)

    monkeypatch.setattr(api_server, "listen_on", listen_on)
    monkeypatch.setattr(api_server, "HttpServer", refuse_to_serve)
    made = ensure_certificate(tmp_path / "tls", ("localhost",), datetime.now(UTC))
    tls = Tls(made, "127.0.0.1", 0, 0, frozenset(), Public(("127.0.0.1",), 0))
    with pytest.raises(ServerError, match="cannot be used"):
        await server(cloud, Service("none"), tls=tls).start()
    assert [each.fileno() for each in opened] == [-1]


async def test_a_stopped_server_gives_its_ports_back(cloud: Cloud) -> None:
    first = server(cloud, Service("none"))
    await first.start()
    ports = {
        "grpc_port": int(first.addresses.grpc.rpartition(":")[2]),
        "http_port": int(first.addresses.http.rpartition(":")[2]),
    }
    await first.stop(grace_seconds=0)
    await first.stop(grace_seconds=0)
    second = server(cloud, Service("none"), **ports)
    await second.start()
    assert (second.addresses.grpc, second.addresses.http) == (first.addresses.grpc, first.addresses.http)
    await second.stop(grace_seconds=0)


async def test_any_free_ports_are_those_of_the_last_time_unless_they_are_taken(cloud: Cloud) -> None:
    first = server(cloud, Service("none"))
    await first.start()
    last = first.addresses
    beside = server(cloud, Service("none"), last=last)
    await beside.start()
    assert {beside.addresses.grpc, beside.addresses.http}.isdisjoint({last.grpc, last.http})
    await beside.stop(grace_seconds=0)
    await first.stop(grace_seconds=0)
    second = server(cloud, Service("none"), last=last)
    await second.start()
    assert second.addresses == last
    await second.stop(grace_seconds=0)


async def test_a_grpc_error_carries_equal_status_details_and_a_request_id(cloud: Cloud) -> None:
    """The SDKs refuse an answer whose details disagree with its code or message."""
    path = "nebius.compute.v1.FilesystemService/Get"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(cloud.server.addresses.grpc, path, id="computefilesystem-e00none")
    error = caught.value
    trailers, headers = dict(error.trailing_metadata()), dict(error.initial_metadata())
    status = contract.message("google.rpc.Status").FromString(trailers["grpc-status-details-bin"])
    assert (status.code, status.message) == (error.code().value[0], error.details())
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert len(headers["x-request-id"]) == 32 and headers["x-trace-id"]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("nebius.compute.v1.DiskService/Get", grpc.StatusCode.UNIMPLEMENTED),
        ("no.such.Service/Get", grpc.StatusCode.UNIMPLEMENTED),
        ("nebius.compute.v1.FilesystemService/Get", grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_bytes_that_mean_nothing_are_answered(cloud: Cloud, path: str, code: grpc.StatusCode) -> None:
    async with grpc.aio.insecure_channel(cloud.server.addresses.grpc) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"/{path}")(
                b"\xff\xff", metadata=(("authorization", f"Bearer {ADMIN}"),)
            )
    assert caught.value.code() is code
    assert path in str(caught.value.details()) or code is grpc.StatusCode.INVALID_ARGUMENT


class FullDisk:
    async def authenticate(self, token: str) -> Subject:
        raise StoreError("The disk is full. Free some space and try again.")


async def test_a_store_that_cannot_is_unavailable_with_its_own_words(cloud: Cloud) -> None:
    dependencies = plain_dependencies(cloud.store, cloud.clock)
    full = ApiServer([Service("vpc", kinds=(NETWORK,))], FullDisk(), PermissionTable(), dependencies)
    await full.start()
    try:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(full.addresses.grpc, f"{NETWORK.rpc}/Get", id="x")
    finally:
        await full.stop(grace_seconds=0)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.details() == "The disk is full. Free some space and try again."


async def test_the_status_page_is_for_signed_in_callers(cloud: Cloud) -> None:
    async def report(subject: Subject) -> dict[str, str]:
        return {"asked by": subject.name}

    dependencies = plain_dependencies(cloud.store, cloud.clock)
    one = ApiServer([], TokenTable(), PermissionTable(), dependencies, status=report)
    await one.start()
    try:
        url = f"http://{one.addresses.http}/status"
        assert (await cloud.http.get(url)).status_code == 401
        answer = await cloud.http.get(url, headers={"authorization": f"Bearer {ADMIN}"})
        assert answer.json() == {"asked by": "admin"}
    finally:
        await one.stop(grace_seconds=0)
