"""A cloud whose certificate is ordered by ACME from the tests' own authority."""

import asyncio
import datetime
import functools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from acme import client as acme_client
from aiohttp import web
from cryptography import x509

from neocloud.control_plane import tls
from neocloud.control_plane.public_certificate import order
from neocloud.control_plane.public_certificate.renewal import FIRST_RETRY, PublicCertificate
from neocloud.server import ServerCertificate
from neocloud.settings.settings import Settings
from neocloud.testing.waiting import FakeClock
from tests.acme_authority import HOUR, Authority

NAMES = ("cloud.example.test", "models.example.test")
DAY = 24 * HOUR
new_account = order.new_account
LONG = 30.0
END = "-----END CERTIFICATE-----\n"
FIRST = FIRST_RETRY.total_seconds()


@functools.cache
def account_key() -> str:
    """An RSA key takes a tenth of a second."""
    return new_account("", "").key


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acme_client, "time", SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setattr(order, "new_account", lambda *words: order.Account(words[0], words[1], account_key()))


class Cloud:
    """One start of the server, as far as its certificate is concerned."""

    def __init__(self, settings: Settings, clock: FakeClock, check: socket.socket) -> None:
        self.settings, self.clock = settings, clock
        self.check = check
        self.public = PublicCertificate(settings, clock, lambda: [listening_beside(check)])
        self.own = self.served

    @property
    def served(self) -> ServerCertificate:
        found = tls.tls_of(self.settings, self.clock.now())
        assert found is not None
        return found.certificate

    @property
    def problem(self) -> str:
        return self.public.problem()

    @property
    def due(self) -> float:
        return self.public.seconds_until_due()

    async def order(self) -> None:
        async with asyncio.timeout(LONG):
            await self.public.renew()
        self.public.step = ""

    def check_not_ordered(self, why: str) -> None:
        """The order failed for this reason, is repeated later, and the cloud serves its own certificate."""
        assert why in self.problem, self.problem
        assert "The next attempt is at" in self.problem and self.problem.isprintable()
        assert self.due >= FIRST - 1
        assert self.served.authority and "certificate of its own authority" in self.problem


@pytest.fixture
def check() -> Iterator[socket.socket]:
    """Holds the port of the check for the test, and does not listen."""
    with socket.socket() as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        found.bind(("127.0.0.1", 0))
        yield found


def listening_beside(check: socket.socket) -> socket.socket:
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    found.bind(check.getsockname())
    found.listen()
    found.setblocking(False)
    return found


@pytest.fixture
async def authority(
    tmp_path: Path, check: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Authority]:
    made = Authority(tmp_path / "authority", lambda name: f"127.0.0.1:{check.getsockname()[1]}")
    monkeypatch.setenv("SSL_CERT_FILE", str(made.trust_file))
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with made.serving():
        yield made


@pytest.fixture
def settings(tmp_path: Path, authority: Authority) -> Settings:
    return Settings(
        home=tmp_path / "home",
        tls_port=0,
        listen=("127.0.0.1",),
        acme_domains=NAMES,
        acme_email="you@example.test",
        acme_directory=authority.directory,
        acme_agree_tos=True,
    )


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(datetime.datetime.now(datetime.UTC))


@pytest.fixture
def cloud(settings: Settings, clock: FakeClock, check: socket.socket) -> Cloud:
    return Cloud(settings, clock, check)


def leaf(certificate: ServerCertificate) -> x509.Certificate:
    return x509.load_pem_x509_certificate(certificate.chain)


def folder(cloud: Cloud) -> Path:
    return cloud.settings.certificate_folder


def answers(body: bytes | str = b"", path: str = "", **more: Any) -> Callable[[web.Request], Awaitable[Any]]:
    """Answer so, in place of the authority, all requests or those whose path begins so."""

    async def answer(request: web.Request) -> web.StreamResponse | None:
        if not request.path.startswith(path or "/"):
            return None
        content = body.encode() if isinstance(body, str) else body
        return web.Response(**{"body": content, "content_type": "application/json", **more})

    return answer
