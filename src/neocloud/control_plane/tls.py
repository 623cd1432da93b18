# pyright: strict
"""The certificate and names of this cloud's TLS port, from its settings."""

import datetime

from neocloud.control_plane.settings import PUBLISHED_DOMAIN, Settings
from neocloud.server import Tls, ensure_certificate, server_names


def tls_of(settings: Settings, now: datetime.datetime) -> Tls | None:
    """Return None when TLS is off. Makes or renews the certificate in the state folder."""
    if settings.tls_port is None:
        return None
    domains = (settings.domain, PUBLISHED_DOMAIN)
    hosts = () if settings.host in ("0.0.0.0", "::") else (settings.host,)  # compared with  # nosec B104
    names = server_names(domains, hosts)
    return Tls(
        certificate=ensure_certificate(settings.certificate_folder, names, now),
        host=settings.host,
        port=settings.tls_port,
        redirector_port=settings.redirector_port,
        redirected_names=frozenset(server_names((PUBLISHED_DOMAIN,), ())[2:]),
    )
