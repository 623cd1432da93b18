"""Certificates are ordered by ACME: from an authority that works, that fails, and that is hostile."""

import asyncio
import datetime
import errno
import functools
import json
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from acme import client as acme_client
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from neocloud.control_plane import lifecycle, tls
from neocloud.control_plane.public_certificate import http_check, issued, network, order, renewal
from neocloud.control_plane.public_certificate.renewal import FIRST_RETRY, PublicCertificate
from neocloud.control_plane.settings import Settings
from neocloud.core.certificate_files import CertificateFiles
from neocloud.server import ServerCertificate, certificate_state
from neocloud.testing.waiting import FakeClock
from tests.acme_authority import HOUR, Authority, Refused, pem

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


async def test_a_certificate_is_ordered_and_served_without_a_restart(
    cloud: Cloud, authority: Authority
) -> None:
    files = CertificateFiles(cloud.own.chain_file, cloud.own.key_file)
    assert files.load().chain == cloud.own.chain and cloud.own.authority and cloud.due == 0
    await cloud.order()
    assert cloud.problem == ""
    served = cloud.served
    assert served.authority == b"", "clients trust the authority without a certificate of ours"
    assert files.load().chain == served.chain and served.chain != cloud.own.chain
    assert leaf(served).issuer == authority.issuer.subject
    names = leaf(served).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == list(NAMES)
    assert {"cloud.example.test", "models.example.test"} <= {*tls.host_names(cloud.settings)}
    assert {"cloud.example.test", "models.example.test"} <= {*tls.gateway_names(cloud.settings)}
    assert authority.contacts == [["mailto:you@example.test"]]


async def test_keys_are_for_their_owner_alone(cloud: Cloud) -> None:
    await cloud.order()
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in folder(cloud).iterdir()}
    open_to_all = {name for name, mode in modes.items() if mode & 0o077}
    assert open_to_all == {"ca.pem", "server.pem"}
    assert {"acme-account.json", "acme-certificate.json", "server.key"} <= modes.keys()
    assert "PRIVATE" not in (folder(cloud) / "server.pem").read_text()


async def test_a_restart_orders_nothing(
    cloud: Cloud, authority: Authority, settings: Settings, clock: FakeClock, check: socket.socket
) -> None:
    await cloud.order()
    again = Cloud(settings, clock, check)
    assert again.due > 59 * DAY.total_seconds() and again.own.chain == cloud.served.chain
    await again.order()
    assert len(authority.orders) == 1 and again.public.step == ""


async def test_it_is_renewed_at_two_thirds_of_its_lifetime_by_the_same_account(
    cloud: Cloud, authority: Authority
) -> None:
    await cloud.order()
    first = cloud.served
    assert 60 * DAY - 2 * HOUR <= datetime.timedelta(seconds=cloud.due) <= 63 * DAY
    authority.begins += datetime.timedelta(seconds=cloud.due)
    await cloud.clock.advance(cloud.due + 1)
    await cloud.order()
    assert leaf(cloud.served).serial_number != leaf(first).serial_number
    assert cloud.served.key != first.key, "each has a key of its own"
    assert len(authority.orders) == 2 and len(authority.contacts) == 1
    assert authority.orders[0].account == authority.orders[1].account


async def test_the_loop_orders_and_tells_the_server(
    cloud: Cloud, settings: Settings, clock: FakeClock
) -> None:
    served: asyncio.Future[ServerCertificate] = asyncio.get_running_loop().create_future()

    def renewed(certificate: ServerCertificate) -> None:
        if not served.done():
            served.set_result(certificate)

    task = asyncio.create_task(tls.renew_certificate(settings, clock, renewed, cloud.public))
    await clock.advance(0.1)
    async with asyncio.timeout(LONG):
        found = await served
    assert found.authority == b"" and leaf(found).issuer != leaf(cloud.own).issuer
    task.cancel()
    await asyncio.wait({task})


async def test_a_failed_renewal_leaves_the_certificate_until_its_end(
    cloud: Cloud, authority: Authority
) -> None:
    await cloud.order()
    first = cloud.served
    authority.before = answers(status=500)
    await cloud.clock.advance(80 * DAY.total_seconds())
    await cloud.order()
    assert "The present one is served until" in cloud.problem and cloud.served.chain == first.chain
    await cloud.clock.advance(11 * DAY.total_seconds())
    assert cloud.served.authority, "it has ended"
    assert "certificate of its own authority" in cloud.problem


async def test_status_says_what_is_wrong_and_that_it_is_repeated(cloud: Cloud, authority: Authority) -> None:
    def reported() -> dict[str, Any]:
        served, now = cloud.served, cloud.clock.now()
        state = certificate_state(served.chain, served.chain_file, now, authority=served.authority)
        return lifecycle._certificate_report(state, cloud.clock, cloud.public)

    assert reported()["acme"]["step"] == "waiting" and reported()["problem"] == ""
    authority.before = answers(status=503)
    await cloud.order()
    assert "cannot be understood" in reported()["problem"]
    assert reported()["is_own"] and reported()["is_renewed"] and reported()["acme"]["step"] == ""
    authority.before = None
    await cloud.clock.advance(cloud.due + 1)
    await cloud.order()
    found = reported()
    assert found["problem"] == "" and not found["is_own"] and found["is_renewed"]
    assert found["acme"]["names"] == list(NAMES) and found["acme"]["directory"] == authority.directory


async def test_an_order_that_fails_leaves_the_authority_that_colleagues_trust(
    settings: Settings, authority: Authority, clock: FakeClock, check: socket.socket
) -> None:
    """It may not sign for the names that are ordered, as the cloud was made before."""
    before = tls.tls_of(replace(settings, acme_domains=()), clock.now())
    authority.before = answers(status=503)
    cloud = Cloud(settings, clock, check)
    await cloud.order()
    assert before is not None and cloud.served.authority == before.certificate.authority
    assert cloud.served.chain == before.certificate.chain
    authority.before = None
    await clock.advance(cloud.due + 1)
    await cloud.order()
    assert cloud.problem == "" and not cloud.served.authority


# Authorities that fail, or are hostile


def answers(body: bytes | str = b"", path: str = "", **more: Any) -> Callable[[web.Request], Awaitable[Any]]:
    """Answer so, in place of the authority, all requests or those whose path begins so."""

    async def answer(request: web.Request) -> web.StreamResponse | None:
        if not request.path.startswith(path or "/"):
            return None
        content = body.encode() if isinstance(body, str) else body
        return web.Response(**{"body": content, "content_type": "application/json", **more})

    return answer


def internal(name: str) -> str:
    """A directory that leads into the operator's network."""
    urls = {each: "https://169.254.169.254/latest" for each in ("newNonce", "newAccount", "newOrder")}
    return json.dumps({**urls, "meta": {}}).replace("https://169.254.169.254", name)


HOSTILE = {
    "no JSON": (answers("<html>Sign in to the Wi-Fi"), "cannot be understood"),
    "nothing": (answers(), "cannot be understood"),
    "a list": (answers("[1, 2]"), "cannot be understood"),
    "another document": (answers('{"a": 1}'), "is not the directory"),
    "deep": (answers("[" * 100_000), "cannot be understood"),
    "bytes": (answers(bytes(range(256))), "cannot be understood"),
    "huge": (answers(b" " * (network.MAX_ANSWER_BYTES + 1)), "more than 262144 bytes"),
    "a huge order": (answers(b" " * 10**7, "/order"), "more than 262144 bytes"),
    "an error": (answers("broken", status=500, content_type="text/html"), "answers with status 500"),
    "an error in JSON": (answers("[{}]", status=500), "refused (error)"),
    "a redirect": (answers(status=302, headers={"Location": "http://169.254.169.254/"}), "redirects"),
    "a redirect of an order": (answers(path="/order", status=307, headers={"Location": "/x"}), "redirects"),
    "URLs of another host": (answers(internal("https://169.254.169.254")), "not its own"),
    "URLs of this machine": (answers(internal("https://127.0.0.1:7372")), "not its own"),
    "plain text": (answers(internal("http://127.0.0.1")), "not its own"),
    "URLs that are none": (answers(internal("https://[")), "not its own"),
    "files": (answers(internal("file:///etc/passwd?")), "not its own"),
    "no account": (answers('{"a": 1}', "/account"), "not its own"),
    "a foreign account": (
        answers('{"status": "valid"}', "/account", headers={"Location": "https://evil.example/1"}),
        "not its own",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_an_answer_that_is_none_costs_the_cloud_nothing(
    cloud: Cloud, authority: Authority, kind: str
) -> None:
    authority.before, why = HOSTILE[kind]
    await cloud.order()
    cloud.check_not_ordered(why)


async def test_a_text_of_the_authority_cannot_write_to_the_terminal(
    cloud: Cloud, authority: Authority
) -> None:
    async def refuse(request: web.Request) -> None:
        if request.path == "/order":
            raise Refused("rejectedIdentifier", "\x1b]0;owned\x07\x1b[2J" + "x" * 5000 + "\u202egnp")

    authority.before = refuse
    await cloud.order()
    cloud.check_not_ordered("rejectedIdentifier")
    assert "\x1b" not in cloud.problem and len(cloud.problem) < 1000


async def test_an_authority_that_hangs_is_given_up(
    cloud: Cloud, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "REQUEST_SECONDS", 0.2)

    async def hang(request: web.Request) -> None:
        await asyncio.sleep(LONG)

    authority.before = hang
    await cloud.order()
    cloud.check_not_ordered("cannot be reached: ")


async def test_an_authority_that_drips_is_given_up(
    cloud: Cloud, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No single read takes long."""
    monkeypatch.setattr(order, "ORDER_SECONDS", 0.3)

    async def drip(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for _ in range(1000):
            await answer.write(b" ")
            await asyncio.sleep(0.02)
        return answer

    authority.before = drip
    await cloud.order()
    cloud.check_not_ordered("did not finish")


async def test_an_authority_that_never_ends_is_given_up(
    cloud: Cloud, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "MAX_REQUESTS", 25)
    lists = {"identifiers": [], "authorizations": [], "finalize": "https://a/"}
    body = json.dumps({"status": "processing", **lists})

    async def process(request: web.Request) -> web.StreamResponse | None:
        if request.path != "/order/0":
            return None
        nonce = {"Retry-After": "0", "Replay-Nonce": "YQ"}
        return web.Response(text=body, content_type="application/json", headers=nonce)

    authority.before = process
    await cloud.order()
    cloud.check_not_ordered("after 25 requests")
    assert len(authority.requests) == 25


async def test_an_authority_that_this_machine_does_not_trust_signs_nothing(
    cloud: Cloud, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(cloud.settings.certificate_folder / "ca.pem"))
    await cloud.order()
    cloud.check_not_ordered("CERTIFICATE_VERIFY_FAILED")
    assert authority.requests == []


async def test_an_authority_that_is_not_there(cloud: Cloud, settings: Settings, check: socket.socket) -> None:
    port = check.getsockname()[1]  # bound, and nobody listens
    nowhere = replace(settings, acme_directory=f"https://127.0.0.1:{port}/directory")
    other = Cloud(nowhere, cloud.clock, check)
    await other.order()
    other.check_not_ordered("cannot be reached")


async def test_a_nonce_that_is_refused_is_replaced(cloud: Cloud, authority: Authority) -> None:
    authority.bad_nonces = 1
    await cloud.order()
    assert cloud.problem == "" and not cloud.served.authority


async def test_nonces_that_are_always_refused(cloud: Cloud, authority: Authority) -> None:
    authority.bad_nonces = 10_000
    await cloud.order()
    cloud.check_not_ordered("badNonce")
    assert len(authority.requests) < 10


async def test_an_account_that_the_authority_forgot_is_made_again(cloud: Cloud, authority: Authority) -> None:
    await cloud.order()
    authority.forget_accounts()
    (folder(cloud) / "acme-certificate.json").unlink()
    await cloud.clock.advance(2 * HOUR.total_seconds())
    await cloud.order()
    assert "accountDoesNotExist" in cloud.problem
    await cloud.clock.advance(cloud.due + 1)
    await cloud.order()
    assert cloud.problem == "" and len(authority.contacts) == 2


async def test_another_address_of_the_operator_reaches_the_authority(
    cloud: Cloud, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "new_account", new_account)
    await cloud.order()
    (folder(cloud) / "acme-certificate.json").unlink()
    moved = replace(cloud.settings, acme_email="other@example.test")
    again = Cloud(moved, cloud.clock, cloud.check)
    await again.order()
    assert again.problem == ""
    assert authority.contacts == [["mailto:you@example.test"], ["mailto:other@example.test"]]


async def test_an_authority_with_accounts_made_elsewhere_is_named(cloud: Cloud, authority: Authority) -> None:
    authority.meta["externalAccountRequired"] = True
    await cloud.order()
    cloud.check_not_ordered("external account binding")


async def test_an_authority_that_does_not_check_by_http(cloud: Cloud, authority: Authority) -> None:
    authority.challenge_type = "dns-01"
    await cloud.order()
    cloud.check_not_ordered("does not check cloud.example.test by HTTP")


# Certificates that cannot be served


def leaf_in(chain: str) -> str:
    return chain.partition(END)[0] + END


def issuer_in(chain: str) -> str:
    return chain.partition(END)[2]


def other_key(request: x509.CertificateSigningRequest) -> dict[str, Any]:
    return {"key": ec.generate_private_key(ec.SECP256R1()).public_key()}


UNUSABLE = {
    "another key": ({"leaf": other_key}, "for another key"),
    "another name": (
        {"leaf": lambda _: {"names": ["cloud.example.test", "evil.test"]}},
        "not for models.example.test",
    ),
    "expired": ({"begins": -91 * DAY}, "timedatectl"),
    "of next week": ({"begins": 7 * DAY}, "timedatectl"),
    "about to end": ({"begins": -89 * DAY}, "too soon"),
    "of a minute": ({"lifetime": HOUR + datetime.timedelta(minutes=1)}, "too soon"),
    "no certificate": ({"chain": lambda chain: "-----BEGIN CERTIFICATE-----\nAAAA"}, "not a chain"),
    "nothing": ({"chain": lambda chain: " "}, "not a chain"),
    "a foreign chain": ({}, "did not sign each other"),
    "a long chain": ({"chain": lambda chain: chain + 10 * issuer_in(chain)}, "has 12 certificates"),
}


@pytest.mark.parametrize("kind", UNUSABLE)
async def test_a_certificate_that_cannot_be_served_changes_nothing(
    cloud: Cloud, authority: Authority, kind: str, tmp_path: Path
) -> None:
    changes, why = UNUSABLE[kind]
    for name, value in changes.items():
        setattr(authority, name, value)
    if kind == "a foreign chain":
        foreign = pem(Authority(tmp_path / "foreign", str).issuer)
        authority.chain = lambda chain: leaf_in(chain) + foreign
    await cloud.order()
    cloud.check_not_ordered("cannot be used")
    assert why in cloud.problem
    assert not (folder(cloud) / "acme-certificate.json").exists()


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_clock_that_is_an_hour_off_does_not_matter(
    cloud: Cloud, authority: Authority, clock: FakeClock, settings: Settings, check: socket.socket, hours: int
) -> None:
    off = Cloud(settings, FakeClock(clock.now() + hours * HOUR), check)
    authority.begins = datetime.timedelta()
    await off.order()
    assert off.problem == "" and not off.served.authority


# Failures and restarts


async def test_failures_are_repeated_ever_later_and_restarts_do_not_matter(
    authority: Authority,
    settings: Settings,
    clock: FakeClock,
    check: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(renewal, "FIRST_RETRY", 7 * HOUR)
    authority.before = answers(status=503)
    waited = []
    for _ in range(3):
        await Cloud(settings, clock, check).order()
        again = Cloud(settings, clock, check)
        seen = len(authority.requests)
        await again.order()
        assert len(authority.requests) == seen and again.problem
        waited.append(again.due)
        await clock.advance(again.due + 1)
    for found, hours in zip(waited, (7, 14, 24), strict=True):
        assert hours * 3600 - 1 <= found <= hours * 3600 * (1 + renewal.JITTER)
    authority.before = None
    await Cloud(settings, clock, check).order()
    assert len(authority.orders) == 1 and not settings.acme_failures_file.exists()


async def test_the_authority_says_how_long_to_wait(cloud: Cloud, authority: Authority) -> None:
    async def refuse(request: web.Request) -> None:
        if request.path == "/order":
            raise Refused("rateLimited", "too many", 429, **{"Retry-After": "20000"})

    authority.before = refuse
    await cloud.order()
    cloud.check_not_ordered("rateLimited")
    assert cloud.due == pytest.approx(20000, abs=1)


async def test_no_authority_puts_orders_off_for_ever(
    cloud: Cloud, authority: Authority, settings: Settings, clock: FakeClock, check: socket.socket
) -> None:
    async def refuse(request: web.Request) -> None:
        raise Refused("rateLimited", "too many", 429, **{"Retry-After": "9" * 30})

    authority.before = refuse
    await cloud.order()
    assert cloud.due <= renewal.LONGEST_ASKED_FOR.total_seconds()
    kept = json.loads(settings.acme_failures_file.read_text())
    settings.acme_failures_file.write_text(json.dumps({**kept, "next_at": kept["next_at"] * 10}))
    assert Cloud(settings, clock, check).due <= 8 * DAY.total_seconds()


DAMAGED = ["", "{}", "[1]", "\x00", '{"at": "x", "next_at": []}', '{"at": 1, "next_at": NaN}', '{"x": 2}']


@pytest.mark.parametrize("content", DAMAGED)
async def test_a_record_that_is_damaged_does_not_keep_the_cloud_from_starting(
    cloud: Cloud, content: str
) -> None:
    cloud.settings.acme_failures_file.write_text(content)
    (folder(cloud) / "acme-account.json").write_text(content)
    (folder(cloud) / "acme-certificate.json").write_text(content)
    again = Cloud(cloud.settings, cloud.clock, cloud.check)
    assert again.due == 0 and again.own.authority and not again.problem
    await again.order()
    assert again.problem == ""


async def test_a_clock_that_was_ahead_does_not_put_the_order_off(
    cloud: Cloud, authority: Authority, settings: Settings, clock: FakeClock, check: socket.socket
) -> None:
    authority.before = answers(status=503)
    await Cloud(settings, FakeClock(clock.now() + 365 * DAY), check).order()
    assert Cloud(settings, clock, check).due == 0


async def test_other_names_are_ordered_immediately(
    cloud: Cloud, authority: Authority, settings: Settings, clock: FakeClock, check: socket.socket
) -> None:
    await cloud.order()
    more = replace(settings, acme_domains=(*NAMES, "new.example.test"))
    other = Cloud(more, clock, check)
    assert other.due == 0 and not other.own.authority, "the present one is served meanwhile"
    await other.order()
    assert authority.orders[1].names[2] == "new.example.test"
    moved = replace(settings, acme_directory="https://other.example/directory")
    assert Cloud(moved, clock, check).due == 0


async def test_a_server_that_dies_in_an_order_does_not_order_again_when_it_starts(
    cloud: Cloud, authority: Authority, settings: Settings, clock: FakeClock, check: socket.socket
) -> None:
    begun = asyncio.Event()

    async def hang(request: web.Request) -> None:
        begun.set()
        await asyncio.sleep(LONG)

    authority.before = hang
    task = asyncio.create_task(cloud.public.renew())
    async with asyncio.timeout(LONG):
        await begun.wait()
    killed = Cloud(settings, clock, check)
    assert killed.due >= FIRST - 1 and "ended during the order" in killed.problem
    task.cancel()
    await asyncio.wait({task})
    assert Cloud(settings, clock, check).due == 0, "a stop in order is no failure"


async def test_a_server_that_dies_after_the_order_says_nothing_of_a_failure(
    cloud: Cloud, settings: Settings, clock: FakeClock, check: socket.socket
) -> None:
    """Between the certificate and the removal of the record that was written before the order."""
    await cloud.order()
    cloud.public._note_failure(renewal.CUT_OFF)
    assert settings.acme_failures_file.exists()
    again = Cloud(settings, clock, check)
    assert again.problem == "" and again.due > 59 * DAY.total_seconds()


async def test_a_full_disk_is_found_before_the_authority_is_called(
    cloud: Cloud, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "acme-failures.json")

    with monkeypatch.context() as patched:
        patched.setattr(renewal, "write_file", full)
        await cloud.order()
    cloud.check_not_ordered("No space left on device")
    assert authority.requests == []


async def test_a_certificate_that_did_not_fit_on_the_disk_is_not_ordered_again(
    cloud: Cloud, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "acme-certificate.json")

    with monkeypatch.context() as patched:
        patched.setattr(issued, "write_file", full)
        await cloud.order()
    cloud.check_not_ordered("No space left on device")
    await cloud.clock.advance(cloud.due + 1)
    await cloud.order()
    assert len(authority.orders) == 1 and not cloud.served.authority


async def test_a_certificate_that_cannot_be_read_for_a_moment_is_not_ordered_again(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cloud.order()
    again = Cloud(cloud.settings, cloud.clock, cloud.check)  # which has no pause after an order

    def too_many(path: Path) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_text", too_many)
    assert again.due == renewal.UNKNOWN_SECONDS


async def test_a_port_that_is_taken_is_named(
    settings: Settings, clock: FakeClock, authority: Authority, check: socket.socket
) -> None:
    check.listen()
    taken = replace(settings, acme_http_port=check.getsockname()[1])
    cloud = Cloud(taken, clock, check)
    cloud.public = PublicCertificate(taken, clock)
    await cloud.order()
    cloud.check_not_ordered(f"Port {taken.acme_http_port} on 127.0.0.1 is taken")
    assert "--acme-http-port" in cloud.problem and "Stop what listens there" in cloud.problem


async def test_a_name_that_leads_elsewhere_is_said_with_the_authoritys_reason(
    cloud: Cloud, authority: Authority
) -> None:
    elsewhere = socket.socket()
    elsewhere.bind(("127.0.0.1", 0))  # nobody listens
    authority._resolved = lambda name: f"127.0.0.1:{elsewhere.getsockname()[1]}"
    await cloud.order()
    elsewhere.close()
    cloud.check_not_ordered("refused (connection): cloud.example.test")
    assert "its port 80 is open" in cloud.problem


# The port of the check


@asynccontextmanager
async def checked_port(check: socket.socket) -> AsyncIterator[int]:
    async with http_check.answering(
        [listening_beside(check)], {"/.well-known/acme-challenge/token": "token.print"}
    ):
        yield check.getsockname()[1]


async def said(port: int, sent: bytes) -> bytes:
    async with asyncio.timeout(LONG):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /.well-known/acme-challenge/token HTTP/1.1", b"200"),
        ("GET /.well-known/acme-challenge/other HTTP/1.1", b"404"),
        ("GET /.well-known/acme-challenge/../acme-challenge/token HTTP/1.1", b"404"),
        ("GET /.well-known/acme-challenge/token?x HTTP/1.1", b"404"),
        ("GET /.well-known/acme-challenge/ HTTP/1.1", b"404"),
        ("GET / HTTP/1.1", b"404"),
        ("GET /healthz HTTP/1.1", b"404"),
        ("POST /.well-known/acme-challenge/token HTTP/1.1", b"404"),
        ("CONNECT cloud:443 HTTP/1.1", b"404"),
        ("\x16\x03\x01", b"404"),
        ("", b"404"),
        ("GET", b"404"),
    ],
)
async def test_the_port_of_the_check_answers_one_path(
    check: socket.socket, request_line: str, status: bytes
) -> None:
    async with checked_port(check) as port:
        answer = await said(port, f"{request_line}\r\nHost: evil.test\r\n\r\n".encode("latin-1"))
    assert answer.split()[1] == status
    body = answer.partition(b"\r\n\r\n")[2]
    assert body == (b"token.print" if status == b"200" else b"")


async def test_the_port_of_the_check_is_not_held_by_strangers(
    check: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_check, "CHECK_SECONDS", 0.3)
    async with checked_port(check) as port:
        assert await said(port, b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000) == b""
        assert await said(port, b"GET / HT") == b"", "it is closed when the time is over"
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(http_check.MAX_CHECKS + 5)]
        async with asyncio.timeout(LONG):
            for reader, _ in idle:
                with suppress(ConnectionError):
                    assert await reader.read() == b""
        monkeypatch.setattr(http_check, "CHECK_SECONDS", LONG)
        found = await said(port, b"GET /.well-known/acme-challenge/token HTTP/1.1\r\n\r\n")
        assert found.endswith(b"token.print")
        for _, writer in idle:
            writer.close()


async def test_strangers_who_hold_all_connections_do_not_keep_the_authority_out(
    check: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_check, "CHECK_SECONDS", LONG)
    async with checked_port(check) as port:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(http_check.MAX_CHECKS)]
        found = await said(port, b"GET /.well-known/acme-challenge/token HTTP/1.1\r\n\r\n")
        assert found.endswith(b"token.print")
        for _, writer in idle:
            writer.close()


async def test_a_stranger_who_stays_until_the_end_leaves_no_traceback(
    check: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(LONG):
        async with checked_port(check) as port:
            assert b"404" in await said(port, b"GET / HTTP/1.1\r\n\r\n")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await said(port, b"GET / HTTP/1.1\r\n\r\n")  # accepted after the stranger
        with suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


async def test_the_port_of_the_check_is_closed_after_an_order(
    cloud: Cloud, authority: Authority, check: socket.socket
) -> None:
    seen = []

    async def look(request: web.Request) -> None:
        if request.path.startswith("/finalize"):
            seen.append(await said(check.getsockname()[1], b"GET / HTTP/1.1\r\n\r\n"))

    authority.before = look
    await cloud.order()
    assert seen and b"404" in seen[0], "it is open during the order"
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*check.getsockname())
