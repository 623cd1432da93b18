"""A renewed certificate, or the operator's next one, is served without a restart or a lost connection."""

import asyncio
import dataclasses
import datetime
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from neocloud.control_plane import tls
from neocloud.core.clock import SystemClock
from neocloud.core.service import Service
from neocloud.data_plane.process import listen as listen_for_gateway
from neocloud.data_plane.process import web_server
from neocloud.model_gateway.api.client_protocol import GatewayProtocol, gateway_connections
from neocloud.model_gateway.settings import GatewaySettings
from neocloud.server import (
    ApiServer,
    CertificateFolder,
    Public,
    ServerCertificate,
    Tls,
    ensure_certificate,
    listening,
)
from neocloud.server.certificate_state import WARN_BEFORE, certificate_state
from neocloud.server.certificates import RENEW_BEFORE, SERVER_LIFETIME
from neocloud.settings.settings import Settings
from neocloud.testing.waiting import FakeClock
from tests.control_plane import plain_dependencies
from tests.fast.server.conftest import FILESYSTEM, Cloud, PermissionTable, TokenTable
from tests.fast.server.test_certificate_files import replace, sealed

NAMES = ("localhost", "127.0.0.1")
NOW = datetime.datetime.now(datetime.UTC)
"""OpenSSL checks certificates by this clock; nothing here depends on when it is."""
EARLIER = NOW - (SERVER_LIFETIME - RENEW_BEFORE)
"""A certificate of then is renewed now."""
LONG = 60.0
HOUR = datetime.timedelta(hours=1)
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">I", 0)[1:] + bytes([4, 0]) + bytes(4)
PING = struct.pack(">I", 8)[1:] + bytes([6, 0]) + bytes(4) + bytes(8)


class Client:
    """A connection over TLS."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, port: int, folder: Path, protocol: str = "http/1.1") -> "Client":
        context = ssl.create_default_context(cafile=str(CertificateFolder(folder).authority))
        context.set_alpn_protocols([protocol])
        connecting = asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
        return cls(*await connecting)

    @property
    def serial(self) -> int:
        """Serial number of the server's certificate."""
        der = self._writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return x509.load_der_x509_certificate(der).serial_number

    async def answers(self, sent: bytes) -> bool:
        self._writer.write(sent)
        async with asyncio.timeout(LONG):
            return bool(await self._reader.read(65536))

    def close(self) -> None:
        self._writer.close()


def renew(folder: Path) -> int:
    """Sign another certificate into the same files; return its serial number."""
    return serial(ensure_certificate(folder, NAMES, NOW))


def serial(certificate: ServerCertificate) -> int:
    return x509.load_pem_x509_certificate(certificate.chain).serial_number


@pytest.fixture
async def api(cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    monkeypatch.setattr(listening, "KEEP_ALIVE_SECONDS", LONG)
    server = ApiServer(
        [Service("tests", kinds=(FILESYSTEM,))],
        TokenTable(),
        PermissionTable(),
        plain_dependencies(cloud.store, SystemClock()),
        tls=Tls(
            ensure_certificate(tmp_path / "tls", NAMES, EARLIER),
            *("127.0.0.1", 0, 0, frozenset()),
            Public(("127.0.0.1",), 0),
        ),
    )
    await server.start()
    yield server
    await server.stop(0)


@pytest.mark.parametrize("protocol", ["http/1.1", "h2"], ids=["json", "grpc"])
async def test_the_api_serves_the_renewed_certificate_and_keeps_its_connections(
    api: ApiServer, tmp_path: Path, protocol: str
) -> None:
    folder, is_grpc = tmp_path / "tls", protocol == "h2"
    port = int(api.addresses.tls.rpartition(":")[2]) if is_grpc else api.addresses.https_port
    before = await Client.connect(port, folder, protocol)
    assert await before.answers(HTTP2 if is_grpc else GET)
    renewed = renew(folder)
    after = await Client.connect(port, folder, protocol)
    assert before.serial != after.serial == renewed
    assert await before.answers(PING if is_grpc else GET)
    assert await after.answers(HTTP2 if is_grpc else GET)
    state = api.certificate_state()
    assert state is not None and state.ends_at > NOW + RENEW_BEFORE and not state.problem
    before.close()
    after.close()


async def test_the_gateway_serves_the_renewed_certificate(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    ensure_certificate(folder, NAMES, EARLIER)
    files = CertificateFolder(folder)
    settings = GatewaySettings(tmp_path, "", tls_certificate=files.server, tls_key=files.server_key)
    application = Starlette(routes=[Route("/healthz", lambda request: PlainTextResponse("well"))])
    connections = gateway_connections(settings)
    running = web_server(application, GatewayProtocol, settings, connections, tls=True)
    listener = listen_for_gateway("127.0.0.1", 0, settings.write_seconds)
    port = listener.getsockname()[1]
    serving = asyncio.create_task(running.serve(sockets=[listener]))
    before = await Client.connect(port, folder)
    assert await before.answers(GET)
    renewed = renew(folder)
    after = await Client.connect(port, folder)
    assert before.serial != after.serial == renewed
    assert await before.answers(GET)
    before.close()
    after.close()
    running.end()
    await serving


async def renewed_once(settings: Settings, clock: FakeClock) -> ServerCertificate:
    """Return what a check an hour later serves."""
    checked: asyncio.Future[ServerCertificate] = asyncio.get_running_loop().create_future()

    def renewed(certificate: ServerCertificate) -> None:
        if not checked.done():
            checked.set_result(certificate)

    task = asyncio.create_task(tls.renew_certificate(settings, clock, renewed))
    await clock.advance(tls.RENEWAL_CHECK_SECONDS + 1)
    try:
        async with asyncio.timeout(LONG):
            return await checked
    finally:
        task.cancel()
        await asyncio.wait({task})


@pytest.mark.parametrize(
    ("lived", "is_renewed"),
    [
        (SERVER_LIFETIME - RENEW_BEFORE - datetime.timedelta(days=1), False),
        (SERVER_LIFETIME - RENEW_BEFORE, True),
        (SERVER_LIFETIME + datetime.timedelta(days=1), True),
    ],
    ids=["not yet", "its end is near", "it has ended"],
)
async def test_the_certificate_is_renewed_while_the_cloud_runs(
    tmp_path: Path, lived: datetime.timedelta, *, is_renewed: bool
) -> None:
    settings = Settings(home=tmp_path, tls_port=0)
    found = tls.tls_of(settings, NOW)
    assert found is not None
    later = await renewed_once(settings, FakeClock(NOW + lived))
    assert (serial(later) != serial(found.certificate)) is is_renewed
    assert later.authority == found.certificate.authority


async def test_an_authority_that_has_ended_is_replaced(tmp_path: Path) -> None:
    first = ensure_certificate(tmp_path, NAMES, NOW)
    ten_years = datetime.timedelta(days=3650)
    last = ensure_certificate(tmp_path, NAMES, NOW + ten_years - datetime.timedelta(days=1))
    again = ensure_certificate(tmp_path, NAMES, NOW + ten_years - datetime.timedelta(hours=1))
    assert first.authority == last.authority and again == last
    near = certificate_state(last.chain, last.chain_file, NOW + ten_years - HOUR, authority=last.authority)
    assert near.ends_with_authority and "neo login" in near.problem and "neo down" not in near.problem
    key = CertificateFolder(tmp_path).authority_key.read_bytes()
    assert ensure_certificate(tmp_path, NAMES, NOW + ten_years).authority != first.authority
    assert (tmp_path / "ca.pem.old").read_bytes() == first.authority
    assert (tmp_path / "ca.key.old").read_bytes() == key
    assert (tmp_path / "ca.key.old").stat().st_mode & 0o777 == 0o600


async def test_a_certificate_that_a_clock_ahead_signed_is_signed_again(tmp_path: Path) -> None:
    first = ensure_certificate(tmp_path, NAMES, NOW)
    (tmp_path / "server.pem").unlink()
    ahead = ensure_certificate(tmp_path, NAMES, NOW + RENEW_BEFORE)
    state = certificate_state(ahead.chain, ahead.chain_file, NOW, authority=ahead.authority)
    assert "is not valid before" in state.problem and "timedatectl" in state.problem
    again = ensure_certificate(tmp_path, NAMES, NOW)
    assert again.authority == first.authority and serial(again) != serial(ahead)
    assert not certificate_state(again.chain, again.chain_file, NOW, authority=again.authority).problem


def test_an_authority_that_a_clock_ahead_made_begins_now_and_keeps_its_key(tmp_path: Path) -> None:
    """Clients that trust the one before trust the same key, once that begins."""
    ahead = ensure_certificate(tmp_path, NAMES, NOW + RENEW_BEFORE)
    state = certificate_state(ahead.chain, ahead.chain_file, NOW, authority=ahead.authority)
    assert "is not valid before" in state.problem and "authority again" in state.problem
    again = ensure_certificate(tmp_path, NAMES, NOW)
    assert not certificate_state(again.chain, again.chain_file, NOW, authority=again.authority).problem
    before, now = (x509.load_pem_x509_certificate(each.authority) for each in (ahead, again))
    assert now.not_valid_before_utc <= NOW < now.not_valid_after_utc == before.not_valid_after_utc
    assert list(now.extensions) == list(before.extensions)
    x509.load_pem_x509_certificate(again.chain).verify_directly_issued_by(before)
    assert (tmp_path / "ca.pem.old").read_bytes() == ahead.authority
    assert ensure_certificate(tmp_path, NAMES, NOW) == again


def test_a_clock_that_was_ten_years_ahead_does_not_cost_the_authority(tmp_path: Path) -> None:
    """The one made then is signed again, and takes no place of the one before."""
    first = ensure_certificate(tmp_path, NAMES, NOW)
    key = CertificateFolder(tmp_path).authority_key.read_bytes()
    ahead = ensure_certificate(tmp_path, NAMES, NOW + datetime.timedelta(days=4000))
    again = ensure_certificate(tmp_path, NAMES, NOW)
    assert len({first.authority, ahead.authority, again.authority}) == 3
    assert (tmp_path / "ca.pem.old").read_bytes() == first.authority
    assert (tmp_path / "ca.key.old").read_bytes() == key


async def test_what_cannot_be_renewed_is_said_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings, clock, results = Settings(home=tmp_path, tls_port=0), FakeClock(NOW), [OSError("disk full")] * 2
    certificate = ensure_certificate(settings.certificate_folder, NAMES, NOW)

    async def at_once(work: Callable[..., object], *arguments: object) -> object:
        if results:
            raise results.pop()
        return certificate

    monkeypatch.setattr(asyncio, "to_thread", at_once)
    checked: list[ServerCertificate] = []
    task = asyncio.create_task(tls.renew_certificate(settings, clock, checked.append))
    await clock.advance(3 * tls.RENEWAL_CHECK_SECONDS + 1)
    task.cancel()
    await asyncio.wait({task})
    assert checked == [certificate]
    assert [each.getMessage() for each in caplog.records] == ["The certificate is not renewed: disk full"]


def seal_authority(folder: Path) -> None:
    key = CertificateFolder(folder).authority_key
    replace(key, sealed(key.read_bytes()))


def exchange_authority_key(folder: Path) -> None:
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    replace(CertificateFolder(folder).authority_key, ed25519.Ed25519PrivateKey.generate().private_bytes(*pem))


def mix_authorities(folder: Path) -> None:
    other = ensure_certificate(folder / "other", NAMES, NOW)
    replace(CertificateFolder(folder).authority, other.authority)


@pytest.mark.parametrize("spoil", [seal_authority, exchange_authority_key, mix_authorities])
async def test_an_authority_that_cannot_be_used_does_not_end_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], None]
) -> None:
    settings, clock = Settings(home=tmp_path, tls_port=0), FakeClock(NOW)
    ensure_certificate(settings.certificate_folder, NAMES, NOW)
    spoil(settings.certificate_folder)
    await check_until_said(settings, clock, caplog)
    (said,) = (each.getMessage() for each in caplog.records)
    assert said.startswith("The certificate is not renewed: The cloud's certificate authority")
    assert "Restore both files" in said


async def test_an_error_that_nobody_foresaw_does_not_end_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **options: object) -> ServerCertificate:
        raise x509.DuplicateExtension("twice", x509.ObjectIdentifier("2.5.29.17"))

    monkeypatch.setattr(tls, "ensure_certificate", broken)
    await check_until_said(Settings(home=tmp_path, tls_port=0), FakeClock(NOW), caplog)
    (said,) = (each.getMessage() for each in caplog.records)
    assert "Restore the files in" in said and "DuplicateExtension: twice" in caplog.text


async def check_until_said(settings: Settings, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    """Check the certificate after an hour; return when a warning is logged."""
    task = asyncio.create_task(tls.renew_certificate(settings, clock, lambda _: None))
    await clock.advance(tls.RENEWAL_CHECK_SECONDS + 1)
    async with asyncio.timeout(LONG):
        while not caplog.records and not task.done():
            await asyncio.sleep(0.01)
    assert not task.done()
    task.cancel()
    await asyncio.wait({task})


async def test_files_that_a_start_would_refuse_are_said_before_it(
    cloud: Cloud, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = ensure_certificate(tmp_path, NAMES, NOW)
    given = dataclasses.replace(made, authority=b"")
    server = ApiServer(
        *([], TokenTable(), PermissionTable(), plain_dependencies(cloud.store, SystemClock())),
        tls=Tls(given, "127.0.0.1", 0, 0, frozenset()),
    )
    state = server.certificate_state()
    assert state is not None and not state.problem
    made.key_file.chmod(0o644)
    state = server.certificate_state()
    assert state is not None and "cannot be used at the next start" in state.problem
    assert f"chmod 0600 {made.key_file}" in state.problem
    settings = Settings(home=tmp_path, tls_port=0, tls_certificate=made.chain_file, tls_key=made.key_file)
    await check_until_said(settings, FakeClock(NOW), caplog)
    assert "cannot be used at the next start" in caplog.text


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize(
    ("left", "said"),
    [
        (WARN_BEFORE + datetime.timedelta(hours=1), ""),
        (WARN_BEFORE, "expires at"),
        (datetime.timedelta(), "expired at"),
    ],
)
def test_an_end_that_is_near_is_said_with_the_command_that_helps(
    tmp_path: Path, left: datetime.timedelta, said: str, *, is_own: bool
) -> None:
    made = ensure_certificate(tmp_path, NAMES, NOW)
    ends_at = x509.load_pem_x509_certificate(made.chain).not_valid_after_utc
    authority = made.authority if is_own else b""
    state = certificate_state(made.chain, made.chain_file, ends_at - left, authority=authority)
    assert said in state.problem and bool(said) == bool(state.problem)
    assert state.is_expired(ends_at - left) is (not left)
    if said:
        assert ("neo down" if is_own else "--tls-certificate FILE") in state.problem
    assert dataclasses.replace(state, problem="").ends_at == ends_at
