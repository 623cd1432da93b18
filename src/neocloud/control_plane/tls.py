# pyright: strict
"""The certificate, addresses and names of this cloud's TLS ports, from its settings."""

import datetime
import ipaddress
import re
import socket
from pathlib import Path

import psutil

from neocloud.control_plane.settings import EVERY_ADDRESS, PUBLISHED_DOMAIN, Settings
from neocloud.server import (
    CertificateFolder,
    Public,
    ServerCertificate,
    ServerError,
    Tls,
    ensure_certificate,
    names_of,
    read_certificate,
    server_names,
)

_HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")


def tls_of(settings: Settings, now: datetime.datetime) -> Tls | None:
    """Return None when TLS is off. Makes or renews the certificate in the state folder."""
    if settings.tls_port is None:
        return None
    return Tls(
        certificate=_certificate(settings, now),
        host=settings.host,
        port=settings.tls_port,
        redirector_port=settings.redirector_port,
        redirected_names=frozenset(server_names((PUBLISHED_DOMAIN,), ())[2:]),
        public=Public(settings.listen, settings.https_port) if settings.listen else None,
    )


def certificate_files(settings: Settings) -> tuple[Path, Path]:
    """Return the files of the certificate and its key that TLS ports present."""
    if settings.tls_certificate and settings.tls_key:
        return settings.tls_certificate, settings.tls_key
    files = CertificateFolder(settings.certificate_folder)
    return files.server, files.server_key


def _certificate(settings: Settings, now: datetime.datetime) -> ServerCertificate:
    if settings.tls_certificate is None and settings.tls_key is None:
        return ensure_certificate(settings.certificate_folder, host_names(settings), now)
    if settings.tls_certificate is None or settings.tls_key is None:
        raise ServerError("--tls-certificate and --tls-key go together. Give both, or 'none' for both.")
    return read_certificate(settings.tls_certificate, settings.tls_key, now)


def host_names(settings: Settings) -> tuple[str, ...]:
    """Return every name and address by which clients may call this cloud."""
    hosts = () if settings.host in ("0.0.0.0", "::") else (settings.host,)  # compared with  # nosec B104
    return server_names((settings.domain, PUBLISHED_DOMAIN), (*hosts, *public_names(settings)))


def public_names(settings: Settings) -> tuple[str, ...]:
    """Return the addresses and names by which other machines reach this cloud; none without `--listen`."""
    if not settings.listen:
        return ()
    addresses = host_addresses() if EVERY_ADDRESS in settings.listen else settings.listen
    own = names_of(settings.tls_certificate) if settings.tls_certificate else ()
    return tuple(dict.fromkeys((*addresses, *_host_name(), *settings.gateway_hosts, *own)))


def host_addresses() -> list[str]:
    """Return the addresses of this host's interfaces that other machines may use, in order."""
    found = {
        ipaddress.ip_address(each.address)
        for addresses in psutil.net_if_addrs().values()
        for each in addresses
        if each.family in (socket.AF_INET, socket.AF_INET6) and "%" not in each.address
    }
    usable = [each for each in found if not (each.is_loopback or each.is_link_local)]
    return [str(each) for each in sorted(usable, key=lambda each: (each.version, int(each)))]


def _host_name() -> tuple[str, ...]:
    """Return this host's name, unless no certificate may hold it."""
    name = socket.gethostname().lower()
    return (name,) if _HOST_NAME.fullmatch(name) and len(name) <= 253 else ()
