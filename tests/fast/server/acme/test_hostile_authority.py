"""ACME with an authority that fails or is hostile, and certificates that cannot be served."""

import asyncio
import datetime
import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from neocloud.control_plane.public_certificate import network, order
from neocloud.settings.settings import Settings
from neocloud.testing.waiting import FakeClock
from tests.acme_authority import HOUR, Authority, Refused, pem
from tests.fast.server.acme.conftest import (
    DAY,
    END,
    LONG,
    Cloud,
    answers,
    folder,
    new_account,
)


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
    monkeypatch.setattr(network, "MAX_REQUESTS_PER_NAME", 0)
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
