"""Orders that fail are repeated ever later, whatever restarts and disks do."""

import asyncio
import errno
import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from neocloud.control_plane.public_certificate import issued, renewal
from neocloud.control_plane.public_certificate.renewal import PublicCertificate
from neocloud.settings.settings import Settings
from neocloud.testing.waiting import FakeClock
from tests.acme_authority import HOUR, Authority, Refused
from tests.fast.server.acme.conftest import (
    DAY,
    FIRST,
    LONG,
    NAMES,
    Cloud,
    answers,
    folder,
)


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


async def test_an_account_that_cannot_be_read_is_not_replaced(
    cloud: Cloud, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cloud.order()
    file = folder(cloud) / "acme-account.json"
    kept, read_text = file.read_text(), Path.read_text

    def failing(path: Path, *more: Any) -> str:
        if path == file:
            raise OSError(errno.EIO, "Input/output error", str(file))
        return read_text(path, *more)

    await cloud.clock.advance(80 * DAY.total_seconds())
    authority.begins = 80 * DAY
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", failing)
        await cloud.order()
    assert "Input/output error" in cloud.problem and str(file) in cloud.problem
    assert (file.read_text(), len(authority.orders), len(authority.contacts)) == (kept, 1, 1)
    await cloud.clock.advance(cloud.due + 1)
    await cloud.order()
    assert (cloud.problem, len(authority.orders), len(authority.contacts)) == ("", 2, 1)


async def test_an_address_that_the_host_has_lost_is_named(
    settings: Settings, clock: FakeClock, authority: Authority, check: socket.socket
) -> None:
    lost = replace(settings, listen=("192.0.2.7",), acme_http_port=0)
    cloud = Cloud(lost, clock, check)
    cloud.public = PublicCertificate(lost, clock)
    await cloud.order()
    cloud.check_not_ordered("This host has no address 192.0.2.7 any more")
    assert "neo up --listen ADDRESS" in cloud.problem and "acme-http-port" not in cloud.problem


async def test_a_port_that_is_taken_is_named(
    settings: Settings, clock: FakeClock, authority: Authority, check: socket.socket
) -> None:
    check.listen()
    taken = replace(settings, acme_http_port=check.getsockname()[1])
    cloud = Cloud(taken, clock, check)
    cloud.public = PublicCertificate(taken, clock)
    await cloud.order()
    cloud.check_not_ordered(f"Port {taken.acme_http_port} on 127.0.0.1 is taken")
    assert (
        "`neo config set acme-http-port PORT`" in cloud.problem and "Stop what listens there" in cloud.problem
    )


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
