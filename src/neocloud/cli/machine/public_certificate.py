"""`neo up` with a certificate by ACME: which options go together, and the wait for the order."""

import time
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from neocloud.cli.machine.home import RunningServer
from neocloud.cli.machine.server_process import get_json
from neocloud.cli.output import JsonObject, warn
from neocloud.cli.progress import stage
from neocloud.client.connection import connect
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile
from neocloud.core.json_values import as_object
from neocloud.settings.settings import LETS_ENCRYPT, Settings

WAIT_SECONDS = 200.0
"""Somewhat more than the server takes for an order at most."""
POLL_SECONDS = 0.3
MAX_NAMES = 100
"""The most names of one certificate: the limit of Let's Encrypt and of other public authorities."""


class _NotOrdered(Exception):
    """Ends the stage without its tick."""


def check_public_certificate(settings: Settings, kept: Settings, given: Collection[str]) -> None:
    """Refuse options that do not go together, and an order without agreement to the terms of service."""
    if not settings.acme_domains:
        # Another directory among them: what was agreed to was for the one before.
        others = {"acme_email", "acme_agree_tos", "acme_http_port", "acme_directory"}
        if others & {*given} and "acme_domains" not in given:
            raise ClientError(
                "INVALID_ARGUMENT",
                "The options of ACME are for a certificate that is ordered",
                "Add --acme-domain NAME",
            )
        return
    if not settings.acme_http_port:
        raise ClientError(
            "INVALID_ARGUMENT",
            "The setting acme-http-port is 0, which is any free port: the authority's check cannot find it",
            "Name a port from 1 to 65535 to which the check on port 80 is forwarded",
        )
    if (number := len({*settings.acme_domains})) > MAX_NAMES:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"--acme-domain names {number} hosts, and a certificate is issued for at most {MAX_NAMES}",
            "Name fewer",
        )
    if settings.tls_certificate or settings.tls_key:
        raise ClientError(
            "INVALID_ARGUMENT",
            "--acme-domain cannot be combined with --tls-certificate",
            "Drop one; 'none' removes one that was chosen before",
        )
    if not settings.listen:
        raise ClientError(
            "INVALID_ARGUMENT",
            "--acme-domain is for a cloud that other machines reach, and this one listens on loopback only",
            "Add --listen ADDRESS, or --acme-domain none",
        )
    is_new_authority = settings.acme_directory != kept.acme_directory
    if not settings.acme_agree_tos or (is_new_authority and "acme_agree_tos" not in given):
        authority = urlsplit(settings.acme_directory).netloc
        is_known = settings.acme_directory == LETS_ENCRYPT
        where = "https://letsencrypt.org/repository/" if is_known else "its site"
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{authority} signs only for those who agree to its terms of service, which are at {where}",
            "Read them, and add --acme-agree-tos if you agree",
        )


def wait_for_certificate(settings: Settings, server: RunningServer, profile: Profile) -> None:
    """Show the order while the server is at it, and warn if it fails. The cloud runs meanwhile."""
    with connect(profile, version="") as client:
        certificate = _certificate(server, client.tokens.token())
        try:
            if _step(certificate):
                with stage(f"Certificate for {', '.join(settings.acme_domains)}") as show:
                    deadline = time.monotonic() + WAIT_SECONDS
                    while (step := _step(certificate)) and time.monotonic() < deadline:
                        show(step)
                        time.sleep(POLL_SECONDS)
                        certificate = _certificate(server, client.tokens.token())
                    if certificate.get("problem") or step:
                        raise _NotOrdered
        except _NotOrdered:
            pass
    if problem := certificate.get("problem"):
        warn(str(problem))
    elif _step(certificate):
        warn("The order of the certificate continues; `neo status` says how it ends.")


def _certificate(server: RunningServer, token: str) -> JsonObject:
    report: Any = get_json(server.http, "/status", token) or {}
    return report.get("certificate") or {}


def _step(certificate: JsonObject) -> str:
    return str(as_object(certificate.get("acme")).get("step", ""))
