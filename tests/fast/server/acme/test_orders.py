"""Certificates are ordered by ACME, served, and renewed."""

import asyncio
import datetime
import socket
import stat
from dataclasses import replace
from typing import Any

from cryptography import x509

from neocloud.cli.machine.public_certificate import MAX_NAMES
from neocloud.control_plane import lifecycle, tls
from neocloud.data_plane.certificate_files import CertificateFiles
from neocloud.server import ServerCertificate, certificate_state
from neocloud.settings.settings import Settings
from neocloud.testing.waiting import FakeClock
from tests.acme_authority import HOUR, Authority
from tests.fast.server.acme.conftest import (
    DAY,
    LONG,
    NAMES,
    Cloud,
    answers,
    folder,
    leaf,
)


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


async def test_as_many_names_are_ordered_as_a_certificate_may_have(
    settings: Settings, clock: FakeClock, check: socket.socket, authority: Authority
) -> None:
    names = tuple(f"cloud-{number}.example.test" for number in range(MAX_NAMES))
    cloud = Cloud(replace(settings, acme_domains=names), clock, check)
    await cloud.order()
    assert cloud.problem == "" and not cloud.served.authority
    assert authority.orders[0].names == list(names)


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
