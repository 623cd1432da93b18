# pyright: strict
"""The certificate, addresses and names of this cloud's TLS ports, from its settings."""

import datetime
import re
import socket
from ipaddress import IPv4Network
from pathlib import Path

from neocloud.control_plane.host_addresses import host_addresses
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
        return ensure_certificate(settings.certificate_folder, _certificate_names(settings), now)
    if settings.tls_certificate is None or settings.tls_key is None:
        raise ServerError("--tls-certificate and --tls-key go together. Give both, or 'none' for both.")
    return read_certificate(settings.tls_certificate, settings.tls_key, now)


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
        names += (*addresses, *_host_name(), *_names_of_own_certificate(settings))
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
    own_ranges = [IPv4Network(each) for each in (settings.private_range, settings.public_pool) if each]
    addresses = host_addresses(own_ranges) if EVERY_ADDRESS in settings.listen else settings.listen
    own = _names_of_own_certificate(settings)
    return tuple(dict.fromkeys((*addresses, *_host_name(), *settings.gateway_hosts, *own)))


def _names_of_own_certificate(settings: Settings) -> tuple[str, ...]:
    return names_of(settings.tls_certificate) if settings.tls_certificate else ()


def _host_name() -> tuple[str, ...]:
    """Return this host's name, unless no certificate may hold it."""
    name = socket.gethostname().lower()
    return (name,) if _HOST_NAME.fullmatch(name) and len(name) <= 253 else ()
