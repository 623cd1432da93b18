"""The certificate, addresses and names of TLS ports, from the settings and the networks of this host."""

import asyncio
import datetime
import ipaddress
import logging
import re
import socket
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import psutil

from neocloud.control_plane.public_certificate.issued import Issued
from neocloud.control_plane.public_certificate.renewal import PublicCertificate, held_certificate
from neocloud.core.clock import Clock
from neocloud.core.loops import every
from neocloud.core.osfiles import write_file
from neocloud.server import (
    UNUSABLE_AT_START,
    CertificateFolder,
    Public,
    ServerCertificate,
    ServerError,
    Tls,
    certificate_state,
    ensure_certificate,
    names_of,
    read_certificate,
    server_names,
)
from neocloud.settings.option_values import EVERY_ADDRESS
from neocloud.settings.settings import PUBLISHED_DOMAIN, Settings

logger = logging.getLogger(__name__)

RENEWAL_CHECK_SECONDS = 3600.0
NOT_RENEWED = "The certificate is not renewed: "
_HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
LINKS = Path("/sys/class/net")
IPV6_ADDRESSES = Path("/proc/net/if_inet6")
_IS_TEMPORARY = 0x01
"""IFA_F_TEMPORARY: the kernel replaces such an address after a day."""


def tls_of(settings: Settings, now: datetime.datetime) -> Tls | None:
    """Return None when TLS is off. Makes or renews the certificate in the state folder."""
    if settings.tls_port is None:
        return None
    return Tls(
        certificate=_certificate(settings, _certificate_names(settings), now),
        host=settings.host,
        port=settings.tls_port,
        redirector_port=settings.redirector_port,
        redirected_names=frozenset(server_names((PUBLISHED_DOMAIN,), ())[2:]),
        public=Public(settings.listen, settings.https_port) if settings.listen else None,
    )


async def renew_certificate(
    settings: Settings,
    clock: Clock,
    renewed: Callable[[ServerCertificate], None],
    public: PublicCertificate | None = None,
) -> None:
    """Renew the cloud's own certificate before it ends; say in the log what is wrong with the operator's.

    `public` orders that of a public authority. The names are those of the start. A failure is tried again.
    Never returns.
    """
    names, last_problem = _certificate_names(settings), ""
    while True:
        until_due = public.seconds_until_due() if public else RENEWAL_CHECK_SECONDS
        await clock.sleep(min(until_due, RENEWAL_CHECK_SECONDS))
        if public is not None:
            await public.renew()
        try:
            now = clock.now()
            certificate = await asyncio.to_thread(_certificate, settings, names, now)
            renewed(certificate)
            authority = certificate.authority
            state = certificate_state(certificate.chain, certificate.chain_file, now, authority=authority)
            problem = "" if public else state.problem  # it writes to the log itself
        except ServerError as error:
            is_given = settings.tls_certificate is not None or settings.tls_key is not None
            problem = f"{UNUSABLE_AT_START if is_given else NOT_RENEWED}{error}"
        except OSError as error:
            problem = f"{NOT_RENEWED}{error}"
        except Exception:  # a loop's border: a certificate that serves must not end the server
            folder = CertificateFolder(settings.certificate_folder).path
            logger.exception("%sRestore the files in %s from a backup.", NOT_RENEWED, folder)
            problem = ""
        if public is not None:
            public.step = ""
        if problem and problem != last_problem:
            logger.warning("%s", problem)
        last_problem = problem


async def keep_certificate(ensure: Callable[[], object], whose: str, clock: Clock) -> None:
    """Make or renew a certificate that nothing else renews before it ends. A failure is tried again. Never
    returns."""
    await every(
        *(RENEWAL_CHECK_SECONDS, partial(asyncio.to_thread, ensure)),
        *(f"The certificate of {whose} is not renewed", clock),
        expected=(OSError, ServerError),
        is_first_now=False,
    )


def certificate_files(settings: Settings) -> tuple[Path, Path]:
    """Return the files of the certificate and its key that TLS ports present."""
    if settings.tls_certificate and settings.tls_key:
        return settings.tls_certificate, settings.tls_key
    files = CertificateFolder(settings.certificate_folder)
    return files.server, files.server_key


def _certificate(settings: Settings, names: Sequence[str], now: datetime.datetime) -> ServerCertificate:
    if settings.acme_domains and (settings.tls_certificate or settings.tls_key):
        raise ServerError(
            "--acme-domain and --tls-certificate exclude each other. Give 'none' for one of them."
        )
    if held := held_certificate(settings, now):
        return _served(held, CertificateFolder(settings.certificate_folder))
    if settings.tls_certificate is None and settings.tls_key is None:
        # An order that fails must not cost colleagues the authority that they trust.
        ordered = [name for name in settings.acme_domains if name not in settings.gateway_hosts]
        return ensure_certificate(settings.certificate_folder, names, now, optional=ordered)
    if settings.tls_certificate is None or settings.tls_key is None:
        raise ServerError("--tls-certificate and --tls-key go together. Give both, or 'none' for both.")
    return read_certificate(settings.tls_certificate, settings.tls_key, now)


def _served(issued: Issued, files: CertificateFolder) -> ServerCertificate:
    """Put a public authority's certificate where TLS ports find the cloud's own. Raises OSError."""
    key, chain = issued.key.encode(), issued.chain.encode()
    for path, content, mode in ((files.server_key, key, 0o600), (files.server, chain, 0o644)):
        if not path.exists() or path.read_bytes() != content:
            write_file(path, content, mode, durable=True)
    return ServerCertificate(key, chain, b"", files.server_key, files.server)


def host_names(settings: Settings) -> tuple[str, ...]:
    """Return every name and address by which clients may call this cloud."""
    return tuple(dict.fromkeys((*_certificate_names(settings), *settings.gateway_hosts)))


def gateway_names(settings: Settings) -> tuple[str, ...]:
    """Return the names by which clients may call the gateway, and the addresses that the operator chose.

    The gateway accepts the address at which a request arrives. The addresses behind "all" may change between
    two starts, and other arguments would end a gateway that runs.
    """
    names = (*settings.gateway_hosts, settings.domain)
    if settings.listen:
        addresses = [each for each in settings.listen if each != EVERY_ADDRESS]
        names += (*addresses, *_host_name(), *settings.acme_domains, *_names_of_own_certificate(settings))
    return tuple(dict.fromkeys(names))


def _certificate_names(settings: Settings) -> tuple[str, ...]:
    """Return the names in the cloud's own certificate. Without `--listen` those for a proxy are not among
    them: its authority may not sign for them, and clients would have to trust a new one."""
    hosts = () if settings.host in ("0.0.0.0", "::") else (settings.host,)  # compared with  # nosec B104
    return server_names((settings.domain, PUBLISHED_DOMAIN), (*hosts, *_public_names(settings)))


def _public_names(settings: Settings) -> tuple[str, ...]:
    """Return the addresses and names by which other machines reach this cloud; none without `--listen`."""
    if not settings.listen:
        return ()
    own_ranges = [
        ipaddress.IPv4Network(each) for each in (settings.private_range, settings.public_pool) if each
    ]
    addresses = host_addresses(own_ranges) if EVERY_ADDRESS in settings.listen else settings.listen
    own = _names_of_own_certificate(settings)
    named = (*settings.gateway_hosts, *settings.acme_domains)
    return tuple(dict.fromkeys((*addresses, *_host_name(), *named, *own)))


def _names_of_own_certificate(settings: Settings) -> tuple[str, ...]:
    return names_of(settings.tls_certificate) if settings.tls_certificate else ()


def _host_name() -> tuple[str, ...]:
    """Return this host's name, unless no certificate may hold it."""
    name = socket.gethostname().lower()
    return (name,) if _HOST_NAME.fullmatch(name) and len(name) <= 253 else ()


def host_addresses(
    own_ranges: Sequence[ipaddress.IPv4Network] = (),
    *,
    links: Path = LINKS,
    ipv6_addresses: Path = IPV6_ADDRESSES,
) -> list[str]:
    """Return the addresses that stay between two starts, in order.

    Networks of containers and tenants are left out: bridges without a network card, and addresses in
    `own_ranges`, those of this cloud, on links without one.
    """
    temporary = _temporary_addresses(ipv6_addresses)
    found: set[ipaddress.IPv4Address | ipaddress.IPv6Address] = set()
    for name, addresses in psutil.net_if_addrs().items():
        link = links / name.partition(":")[0]  # "eth0:1" is a label of eth0
        has_card = _has_card(link)
        if not has_card and any((each / "bridge").exists() for each in (link, link / "master")):
            continue
        for each in addresses:
            if each.family not in (socket.AF_INET, socket.AF_INET6) or "%" in each.address:
                continue
            address = ipaddress.ip_address(each.address)
            is_own = not has_card and any(address in network for network in own_ranges)
            if not (is_own or address in temporary or address.is_loopback or address.is_link_local):
                found.add(address)
    return [str(each) for each in sorted(found, key=lambda each: (each.version, int(each)))]


def _has_card(link: Path) -> bool:
    """Return whether the link is a network card, or a bridge, bond or VLAN on one."""
    return (link / "device").exists() or any(_has_card(lower) for lower in link.glob("lower_*"))


def _temporary_addresses(file: Path) -> set[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Return the temporary IPv6 addresses (RFC 8981); none where the kernel has no IPv6."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return set()
    fields = [line.split() for line in lines]
    return {ipaddress.IPv6Address(int(each[0], 16)) for each in fields if int(each[4], 16) & _IS_TEMPORARY}
