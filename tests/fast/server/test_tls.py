"""TLS with the cloud's own authority: certificate, the official SDK over it, the redirector."""

import asyncio
import datetime
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import httpx
import pytest
from cryptography import x509
from nebius.aio.token.token import Token
from nebius.api.nebius.compute.v1 import FilesystemServiceClient, ListFilesystemsRequest
from nebius.sdk import SDK

from neocloud.core.clock import SystemClock
from neocloud.core.contract import api_host_names
from neocloud.core.service import Service
from neocloud.server import ApiServer, Public, ServerError, Tls
from neocloud.server.certificates import (
    RENEW_BEFORE,
    SERVER_LIFETIME,
    ensure_certificate,
    names_of,
    read_certificate,
    server_names,
)
from neocloud.server.listening import has_ipv6
from neocloud.testing.gateway import reserved_port
from tests.control_plane import plain_dependencies
from tests.fast.server.conftest import ADMIN, FILESYSTEM, PROJECT, Cloud, PermissionTable, TokenTable

NOW = datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC)
NAMES = server_names(("api.localhost",), ())


def names_in(pem: bytes) -> list[str]:
    extension = x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    return [str(name.value) for name in extension.value]


def test_the_certificate_names_every_host_of_the_api(tmp_path):
    names = names_in(ensure_certificate(tmp_path, NAMES, NOW).chain)
    assert {f"{name}.api.localhost" for name in api_host_names()} < set(names)
    assert {"compute", "cpl.iam", "tokens.iam", "vpc"} < set(api_host_names())
    assert {"localhost", "127.0.0.1"} < set(names)


def test_certificates_are_valid_on_machines_whose_clock_is_an_hour_behind(tmp_path):
    made = ensure_certificate(tmp_path, NAMES, NOW)
    for pem in (made.chain, made.authority):
        begins = x509.load_pem_x509_certificate(pem).not_valid_before_utc
        assert begins <= NOW - datetime.timedelta(hours=1)


def test_a_second_start_keeps_the_certificate(tmp_path):
    assert ensure_certificate(tmp_path, NAMES, NOW) == ensure_certificate(tmp_path, NAMES, NOW)


@pytest.mark.parametrize(
    ("names", "later"),
    [
        ((*NAMES, "cloud.localhost"), datetime.timedelta()),
        (NAMES, SERVER_LIFETIME - RENEW_BEFORE),
    ],
    ids=["other names", "its end is near"],
)
def test_a_new_certificate_comes_from_the_same_authority(tmp_path, names, later):
    first = ensure_certificate(tmp_path, NAMES, NOW)
    second = ensure_certificate(tmp_path, names, NOW + later)
    assert second.authority == first.authority
    assert second.chain != first.chain


@pytest.mark.parametrize("damage", [b"", b"no certificate"])
def test_a_damaged_server_certificate_is_made_again(tmp_path, damage):
    first = ensure_certificate(tmp_path, NAMES, NOW)
    (tmp_path / "server.pem").write_bytes(damage)
    assert names_in(ensure_certificate(tmp_path, NAMES, NOW).chain) == names_in(first.chain)


def test_a_certificate_of_another_authority_is_replaced(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ensure_certificate(ours, NAMES, NOW)
    outsider = ensure_certificate(theirs, NAMES, NOW)
    (ours / "server.pem").write_bytes(outsider.chain)
    assert ensure_certificate(ours, NAMES, NOW).chain != outsider.chain


@pytest.mark.parametrize("key", ["of another certificate", "cut off"])
def test_a_certificate_without_its_key_is_replaced(tmp_path: Path, key: str) -> None:
    """A server that dies while it renews writes the key, and not the certificate."""
    kept = ensure_certificate(tmp_path / "ours", NAMES, NOW)
    other = ensure_certificate(tmp_path / "other", NAMES, NOW)
    kept.key_file.write_bytes(other.key if key == "of another certificate" else kept.key[:40])
    again = ensure_certificate(tmp_path / "ours", NAMES, NOW)
    assert again.chain != kept.chain and again.authority == kept.authority
    assert read_certificate(again.chain_file, again.key_file, NOW).key == again.key


def test_private_keys_are_their_owners_only(tmp_path):
    ensure_certificate(tmp_path, NAMES, NOW)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"ca.pem": 0o644, "ca.key": 0o600, "server.pem": 0o644, "server.key": 0o600}


@pytest.mark.parametrize("listens", [False, True], ids=["--host", "--listen"])
async def test_an_address_that_the_host_does_not_have_is_said(cloud: Cloud, tmp_path, listens: bool) -> None:
    missing, certificate = "203.0.113.1", ensure_certificate(tmp_path, NAMES, NOW)
    host, public = ("127.0.0.1", Public((missing,), 0)) if listens else (missing, None)
    server = ApiServer(
        [Service("tests", kinds=(FILESYSTEM,))],
        TokenTable(),
        PermissionTable(),
        plain_dependencies(cloud.store, SystemClock()),
        tls=Tls(certificate, host, 0, 0, frozenset(), public),
    )
    with pytest.raises(ServerError, match=f"This host has no address {missing}"):
        await server.start()


@pytest.fixture
async def tls_server(cloud: Cloud, tmp_path) -> AsyncIterator[ApiServer]:
    certificate = ensure_certificate(tmp_path / "tls", server_names(("api.localhost", "api.test"), ()), NOW)
    redirected = frozenset(server_names(("api.test",), ())[2:])
    server = ApiServer(
        [Service("tests", kinds=(FILESYSTEM,))],
        TokenTable(),
        PermissionTable(),
        plain_dependencies(cloud.store, SystemClock()),
        tls=Tls(certificate, "127.0.0.1", 0, 0, redirected),
    )
    await server.start()
    yield server
    await server.stop(grace_seconds=0)


def authority(tmp_path) -> bytes:
    return (tmp_path / "tls" / "ca.pem").read_bytes()


async def test_the_official_sdk_trusts_the_authority_and_nothing_less(tls_server, tmp_path):
    port = tls_server.addresses.tls.rpartition(":")[2]
    request = ListFilesystemsRequest(parent_id=PROJECT)
    trusting = SDK(
        domain=f"api.localhost:{port}",
        credentials=Token(ADMIN),
        user_agent_prefix="tests/1.0",
        tls_credentials=grpc.ssl_channel_credentials(authority(tmp_path)),
    )
    assert len((await FilesystemServiceClient(trusting).list(request)).items) == 0
    await trusting.close()
    plain = grpc.aio.insecure_channel(tls_server.addresses.tls)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await plain.unary_unary("/nebius.compute.v1.FilesystemService/List")(b"", timeout=60)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    await plain.close()


async def connect(address: str, request_line: str) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*address.rsplit(":", 1))
    writer.write(f"{request_line}\r\nHost: any\r\n\r\n".encode())
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    return head.decode().splitlines()[0], reader, writer


@pytest.fixture
async def open_server(cloud: Cloud, tmp_path) -> AsyncIterator[ApiServer]:
    """Listens on every address of this machine, for the time of a test."""
    names = server_names(("api.localhost",), ("::1",))
    server = ApiServer(
        [Service("tests", kinds=(FILESYSTEM,))],
        TokenTable(),
        PermissionTable(),
        plain_dependencies(cloud.store, SystemClock()),
        tls=Tls(
            ensure_certificate(tmp_path / "tls", names, NOW),
            *("127.0.0.1", 0, 0, frozenset()),
            Public(("all",), 0),
        ),
    )
    await server.start()
    yield server
    await server.stop(grace_seconds=0)


FAMILIES = ["127.0.0.1", *(["[::1]"] if has_ipv6() else [])]


@pytest.mark.parametrize("host", FAMILIES)
async def test_every_address_answers_in_each_family(open_server, tmp_path, host):
    addresses = open_server.addresses
    trust = ssl.create_default_context(cadata=authority(tmp_path).decode())
    async with httpx.AsyncClient(verify=trust, trust_env=False, timeout=60) as client:
        answer = await client.get(f"https://{host}:{addresses.https_port}/.well-known/neocloud")
        port = addresses.tls.rpartition(":")[2]
        assert answer.json()["grpc_port"] == int(port)
        assert answer.json()["authority"] == authority(tmp_path).decode()
        plain = await client.get(f"http://{addresses.http}/.well-known/neocloud")
        assert plain.status_code in (404, 405)
    channel = grpc.aio.secure_channel(f"{host}:{port}", grpc.ssl_channel_credentials(authority(tmp_path)))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary("/nebius.compute.v1.FilesystemService/List")(b"", timeout=60)
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
    await channel.close()


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
async def test_a_port_that_is_taken_in_one_family_is_said(cloud, tmp_path):
    with reserved_port() as port, socket.socket(socket.AF_INET6) as taken:
        taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        taken.bind(("::1", port))
        taken.listen()
        server = ApiServer(
            [Service("tests", kinds=(FILESYSTEM,))],
            TokenTable(),
            PermissionTable(),
            plain_dependencies(cloud.store, SystemClock()),
            tls=Tls(
                ensure_certificate(tmp_path / "tls", NAMES, NOW),
                *("127.0.0.1", port, 0, frozenset()),
                Public(("all",), 0),
            ),
        )
        with pytest.raises(ServerError, match=f"Port {port} on :: is taken"):
            await server.start()
        await server.stop(grace_seconds=0)


def test_a_certificate_of_somebody_else_is_checked(tmp_path):
    ours = ensure_certificate(tmp_path / "ours", ("cloud.example", "192.0.2.7", "*.cloud.example"), NOW)
    theirs = ensure_certificate(tmp_path / "theirs", NAMES, NOW)
    found = read_certificate(ours.chain_file, ours.key_file, NOW)
    assert (found.chain, found.key, found.authority) == (ours.chain, ours.key, b"")
    assert names_of(ours.chain_file) == ("cloud.example", "192.0.2.7")
    later = NOW + SERVER_LIFETIME + datetime.timedelta(days=1)
    (tmp_path / "text.pem").write_text("no certificate")
    wrong = {
        "not the key": (ours.chain_file, theirs.key_file, NOW),
        "ends on": (ours.chain_file, ours.key_file, later),
        "not a certificate and its key": (tmp_path / "text.pem", ours.key_file, NOW),
        "cannot be read": (tmp_path / "nowhere.pem", ours.key_file, NOW),
    }
    for words, (chain, key, now) in wrong.items():
        with pytest.raises(ServerError, match=words):
            read_certificate(chain, key, now)
    ours.key_file.chmod(0o644)
    with pytest.raises(ServerError, match="chmod 0600"):
        read_certificate(ours.chain_file, ours.key_file, NOW)


async def test_the_redirector_leads_published_names_to_the_tls_port(tls_server, tmp_path):
    line = "CONNECT compute.api.test:443 HTTP/1.1"
    status, _, writer = await connect(tls_server.addresses.redirector, line)
    assert status.startswith("HTTP/1.1 200")
    trust = ssl.create_default_context(cadata=authority(tmp_path).decode())
    trust.set_alpn_protocols(["h2"])
    await asyncio.wait_for(writer.start_tls(trust, server_hostname="compute.api.test"), 60)
    assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
    writer.close()


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("CONNECT example.com:443 HTTP/1.1", "403"),
        ("CONNECT compute.api.test:22 HTTP/1.1", "403"),
        ("GET http://compute.api.test/ HTTP/1.1", "405"),
    ],
)
async def test_the_redirector_is_no_way_out(tls_server, line, status):
    answer, _, writer = await connect(tls_server.addresses.redirector, line)
    writer.close()
    assert answer.split()[1] == status


async def test_a_taken_port_is_said(tls_server, cloud, tmp_path):
    certificate = ensure_certificate(tmp_path / "tls", NAMES, NOW)
    taken = int(tls_server.addresses.tls.rpartition(":")[2])
    dependencies = plain_dependencies(cloud.store, SystemClock())
    second = ApiServer(
        [],
        TokenTable(),
        PermissionTable(),
        dependencies,
        tls=Tls(certificate, "127.0.0.1", taken, 0, frozenset()),
    )
    with pytest.raises(ServerError, match=f"Port {taken} on 127.0.0.1 is taken"):
        await second.start()
