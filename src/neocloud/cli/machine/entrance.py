"""The open ports of a cloud, who can reach them, and the data that colleagues need to sign in from another
machine.
"""

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlsplit

from neocloud.cli.machine.home import Home, RunningServer
from neocloud.cli.output import JsonObject
from neocloud.client.trust import fingerprint
from neocloud.control_plane.settings_file import settings_or_defaults
from neocloud.settings.option_values import EVERY_ADDRESS
from neocloud.settings.settings import EVERY_IPV4_ADDRESS, LOOPBACK

SSH = "ssh to Slurm login nodes"


def open_ports(server: RunningServer) -> list[JsonObject]:
    """Return every port on which the cloud listens: address, port, protocol, and whether with TLS.

    The ports of login nodes are a range from `port` to `last_port`; a port without a cluster is closed.
    """
    near = [
        (server.grpc, "gRPC", False),
        (server.http.removeprefix("http://"), "JSON", False),
        (server.gateway, "OpenAI API", False),
        (server.s3, "S3", False),
        (server.redirector, "redirector", False),
        ("" if server.listen else server.tls, "gRPC", True),
    ]
    beyond = [
        (f"{address}:{port}", protocol, True)
        for address in server.listen
        for port, protocol in _ports_beyond(server)
    ]
    found = [_port(address, protocol, tls) for address, protocol, tls in (*near, *beyond) if address]
    return [*found, *_login_ports(server)]


def entrance_rows(place: Home, server: RunningServer) -> Iterator[tuple[str, object]]:
    """Yield lines of `neo status` and `neo up`."""
    yield from _port_rows(place, server)
    settings = settings_or_defaults(place.path)[0]
    if settings.public_interface and not settings.emulator:
        where = f"{settings.public_pool} on {settings.public_interface}"
        yield "Public addresses", f"{where}: open to other machines as security groups allow"


def _port_rows(place: Home, server: RunningServer) -> Iterator[tuple[str, object]]:
    ports = open_ports(server)
    beyond = [port for port in ports if port["tls"] and port["address"] in server.listen]
    if not beyond:
        yield "Open to", "this machine only (loopback)"
        return
    login_nodes = [port for port in ports if port["protocol"] == SSH and port["address"] != LOOPBACK]
    what = "over TLS, and ssh with a key" if login_nodes else "over TLS"
    yield "Open to", f"other machines, {what}; plain text on loopback only"
    for each in beyond:
        yield f"  TCP {each['port']}", f"{each['protocol']} on {_where(each['address'])}"
    for each in login_nodes:
        yield f"  TCP {each['port']}-{each['last_port']}", f"{SSH} on {_where(each['address'])}"
    settings = settings_or_defaults(place.path)[0]
    if settings.acme_domains:
        yield f"  TCP {settings.acme_http_port}", "check by the certificate authority, during an order only"
    yield "Sign in with", f"neo login {sign_in_url(place, server)} EMAIL"
    if own := settings.tls_certificate:
        yield "Certificate", f"{own}, of another authority"
    elif has_public_certificate(place):
        authority = urlsplit(settings.acme_directory).netloc
        yield "Certificate", f"for {', '.join(settings.acme_domains)}, by ACME from {authority}"
    else:
        yield "Fingerprint", authority_fingerprint(place)


def authority_fingerprint(place: Home) -> str:
    """Return the SHA-256 fingerprint of the cloud's certificate authority; "" for one that is not its own."""
    if not has_own_authority(place):
        return ""
    try:
        return fingerprint(ssl.PEM_cert_to_DER_cert(place.authority_file.read_text()))
    except (OSError, ValueError):
        return ""


def has_own_authority(place: Home) -> bool:
    """Return whether the cloud's own authority signed the certificate that it serves."""
    return not (settings_or_defaults(place.path)[0].tls_certificate or has_public_certificate(place))


def has_public_certificate(place: Home) -> bool:
    """Return whether the cloud serves a certificate that a public authority issued by ACME."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        issued = json.loads((place.path / "tls" / "acme-certificate.json").read_text())
        return issued["chain"] == (place.path / "tls" / "server.pem").read_text()
    return False


def sign_in_url(place: Home, server: RunningServer) -> str:
    """Return what colleagues give to `neo login`."""
    first = server.listen[0]
    host = socket.gethostname() if first == EVERY_ADDRESS else first
    host = next(iter(settings_or_defaults(place.path)[0].acme_domains), host)
    return f"https://{f'[{host}]' if ':' in host else host}:{server.https_port}"


def _ports_beyond(server: RunningServer) -> Iterator[tuple[int, str]]:
    yield int(server.tls.rpartition(":")[2]), "gRPC"
    yield server.https_port, "JSON"
    if server.gateway_tls_port:
        yield server.gateway_tls_port, "OpenAI API and chat page"
    if server.s3_tls_port:
        yield server.s3_tls_port, "S3"


def _login_ports(server: RunningServer) -> Iterator[JsonObject]:
    first, last = server.login_ports
    for address in server.login_addresses:
        yield {"address": address, "port": first, "last_port": last, "protocol": SSH, "tls": False}


def _where(address: object) -> object:
    names = {EVERY_ADDRESS: "every address", EVERY_IPV4_ADDRESS: "every IPv4 address"}
    return names.get(str(address), address)


def _port(address: str, protocol: str, tls: bool) -> JsonObject:
    host, _, port = address.rpartition(":")
    return {"address": host.strip("[]"), "port": int(port), "protocol": protocol, "tls": tls}
