"""Trust a cloud on another machine: fetch its certificate authority, and check it before anything is sent.

The authority comes over a connection that is not verified yet, so it is only trusted when its
fingerprint is the one that the operator gave. Everything after that goes over verified connections.
"""

import hashlib
import http.client
import json
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

from neocloud import __version__
from neocloud.client.errors import ClientError, ReleasesApart
from neocloud.client.profiles import config_file
from neocloud.core import releases
from neocloud.core.osfiles import make_private_parents, write_file

DEFAULT_PORT = 7374
PATH = "/.well-known/neocloud"
SECONDS = 15.0
MOST_BYTES = 256 * 1024
CLOCKS_DIFFER = timedelta(minutes=2)
_NOT_YET_VALID, _EXPIRED = 9, 10
"""OpenSSL's codes X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""
_WRONG_TIME = (_NOT_YET_VALID, _EXPIRED)


@dataclass(frozen=True)
class RemoteCloud:
    """A cloud whose certificate was verified."""

    url: str
    endpoint: str
    """host:port of gRPC over TLS."""
    gateway: str
    """URL of the OpenAI-compatible API; "" when there is none."""
    ca_file: str


@dataclass(frozen=True)
class _Document:
    authority: str
    grpc_port: int
    gateway_port: int
    version: str


def is_url(text: str) -> bool:
    return "://" in text


def find_cloud(
    url: str, ca_file: str, wanted_fingerprint: str, confirm: Callable[[str], bool]
) -> RemoteCloud:
    """Return the cloud at this URL, verified.

    `confirm` is called with the fingerprint of its authority when neither a file of certificates nor a
    fingerprint is given. Raises ClientError; ReleasesApart when its release does not work with this one.
    """
    host, port = _host_and_port(url)
    if not ca_file:
        offered = _fetch(host, port, _unverified()).authority
        if offered or wanted_fingerprint:
            authority = _der(offered, url)
            _check_fingerprint(authority, wanted_fingerprint, confirm, url)
            ca_file = str(_keep(authority))
        else:
            ca_file = _system_authorities()
    found = _fetch(host, port, verified_context(ca_file))
    refusal = releases.refusal(__version__, found.version)
    if refusal is not None:
        raise ReleasesApart("FAILED_PRECONDITION", refusal.message, refusal.next_step)
    name = _in_url(host)
    return RemoteCloud(
        url=f"https://{name}:{port}",
        endpoint=f"{name}:{found.grpc_port}",
        gateway=f"https://{name}:{found.gateway_port}" if found.gateway_port else "",
        ca_file=ca_file,
    )


def cloud_url(url: str) -> str:
    """Return the URL in the form in which a profile holds it. Raises ClientError."""
    host, port = _host_and_port(url)
    return f"https://{_in_url(host)}:{port}"


def fingerprint_of_file(ca_file: str) -> str:
    """Return the fingerprint of the certificate in a file; "" when it cannot be read."""
    try:
        return fingerprint(ssl.PEM_cert_to_DER_cert(Path(ca_file).read_text().strip()))
    except (OSError, ValueError):
        return ""


def fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 fingerprint of a certificate in DER form, as "AB:CD:..."."""
    return hashlib.sha256(certificate).digest().hex(":").upper()


def _host_and_port(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or DEFAULT_PORT
        host.encode("idna")  # raises for a name that cannot be looked up, as with an empty label
    except ValueError:
        parts, host, port = urlsplit(""), "", 0
    if parts.scheme == "http":
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{url} is plain text, which a cloud serves on its own machine only",
            f"Use https://{host}:{DEFAULT_PORT}; the operator opens it with `neo up --listen ADDRESS`",
        )
    is_host = bool(host) and host.isprintable() and " " not in host
    if parts.scheme != "https" or not is_host or parts.path not in ("", "/") or parts.username:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{url!r} is not the URL of a cloud",
            "Write https://HOST:PORT, as `neo status` shows",
        )
    return host, port


def _unverified() -> ssl.SSLContext:
    """For the authority alone, which is checked by its fingerprint."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def verified_context(ca_file: str) -> ssl.SSLContext:
    """Return a TLS context that trusts the authorities in the file. Raises ClientError."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{ca_file} holds no certificate that can be read: {error}",
            "Name another file with --ca-file, or sign in again with `neo login https://HOST:PORT`",
        ) from error


def _system_authorities() -> str:
    """Return the file of the authorities that this machine trusts."""
    paths = ssl.get_default_verify_paths()
    for file in (paths.cafile, paths.openssl_cafile):
        if file and Path(file).exists():
            return file
    raise ClientError(
        "FAILED_PRECONDITION",
        f"This machine has no file of trusted authorities ({paths.openssl_cafile})",
        "Install the package ca-certificates, or give the authority's certificate with --ca-file",
    )


def _fetch(host: str, port: int, context: ssl.SSLContext) -> _Document:
    connection = http.client.HTTPSConnection(host, port, timeout=SECONDS, context=context)
    where = f"https://{host}:{port}"
    try:
        connection.request("GET", PATH)
        response = connection.getresponse()
        body = response.read(MOST_BYTES)
    except ssl.SSLCertVerificationError as error:
        raise _not_trusted(host, port, error) from error
    except (OSError, http.client.HTTPException) as error:
        raise ClientError(
            "UNAVAILABLE",
            f"{where} cannot be reached over TLS: {error}",
            "Check address, port and firewall; `neo status` on the cloud's machine shows what is open",
        ) from error
    finally:
        connection.close()
    try:
        if response.status != http.client.OK:
            raise ValueError(f"status {response.status}")
        document: dict[str, object] = json.loads(body)
        ports = document["grpc_port"], document["gateway_port"]
        grpc_port, gateway_port = (port if isinstance(port, int) else 0 for port in ports)
        version = str(document.get("version", ""))
        return _Document(str(document["authority"]), grpc_port, gateway_port, version)
    except (ValueError, KeyError, TypeError) as error:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"{where} is not the API of a cloud of this kind",
            "Check host and port with `neo status`",
        ) from error


def _not_trusted(host: str, port: int, error: ssl.SSLCertVerificationError) -> ClientError:
    """Return the error; where the certificate is of another time, it says how far the clocks differ."""
    message = f"The certificate of https://{host}:{port} is not trusted: {error.verify_message}"
    ahead = _ahead_of_us(host, port) if error.verify_code in _WRONG_TIME else timedelta()
    if abs(ahead) > CLOCKS_DIFFER:
        minutes = abs(ahead).total_seconds() / 60
        which = "behind" if ahead > timedelta() else "ahead of"
        return ClientError(
            "UNAUTHENTICATED",
            f"{message}. This machine's clock is {minutes:.0f} min {which} the cloud's",
            "Set this machine's clock, for example with `timedatectl set-ntp true`, and try again",
        )
    if error.verify_code == _EXPIRED:
        return ClientError(
            "UNAUTHENTICATED",
            message,
            "Ask the operator: `neo status` on the cloud's machine says how to renew it",
        )
    return ClientError(
        "UNAUTHENTICATED",
        message,
        "Do not sign in there. Ask the operator for the URL and the fingerprint in `neo status`",
    )


def _ahead_of_us(host: str, port: int) -> timedelta:
    """Return how far the server's clock is ahead, by its Date header; nothing if it has none. The server is
    not verified, so this is only a hint in the error."""
    connection = http.client.HTTPSConnection(host, port, timeout=SECONDS, context=_unverified())
    try:
        connection.request("GET", PATH)
        date = connection.getresponse().getheader("date", "")
        return parsedate_to_datetime(date) - datetime.now(UTC)
    except (OSError, http.client.HTTPException, ValueError, TypeError):
        return timedelta()
    finally:
        connection.close()


def _der(authority: str, url: str) -> bytes:
    """Return the bytes that the fingerprint is of. Only they are kept, whatever else the text holds."""
    try:
        return ssl.PEM_cert_to_DER_cert(authority.strip())
    except ValueError as error:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"{url} has a certificate of another authority, whose fingerprint it does not know",
            "Leave --fingerprint out if this machine trusts that authority; else give it with --ca-file",
        ) from error


def _check_fingerprint(authority: bytes, wanted: str, confirm: Callable[[str], bool], url: str) -> None:
    found = fingerprint(authority)
    is_right = _digits(found) == _digits(wanted) if wanted else confirm(found)
    if not is_right:
        raise ClientError(
            "UNAUTHENTICATED",
            f"The authority of {url} has the fingerprint {found}, which is not the expected one",
            "Somebody may be in between. Compare with the fingerprint in `neo status` on the cloud's machine",
        )


def _digits(text: str) -> str:
    return re.sub(r"^sha-?256[:=]|[^0-9a-f]", "", text.strip().lower())


def _keep(authority: bytes) -> Path:
    """Write it where profiles name it. It is not a secret."""
    path = config_file().parent / "authorities" / f"{_digits(fingerprint(authority))[:32]}.pem"
    make_private_parents(path)
    write_file(path, ssl.DER_cert_to_PEM_cert(authority))
    return path
