"""The endpoint at which workloads reach object storage: the address and the certificate of each cloud on a
host.
"""

import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from neocloud.control_plane.workload_storage import workload_storage
from neocloud.core.clock import SystemClock
from neocloud.settings.settings import Settings

NAME = "storage.eu-north1.neocloud.internal"


def handshake(certificate: Path, key: Path, authority: Path, name: str) -> None:
    """Shake hands over TLS in memory. Raises ssl.SSLError."""
    serving, asking = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=authority)
    serving.load_cert_chain(certificate, key)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(back, there, server_hostname=name)
    server = serving.wrap_bio(there, back, server_side=True)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert client.cipher()


def test_its_certificate_is_for_one_name_and_address(tmp_path: Path) -> None:
    found = workload_storage(Settings(home=tmp_path), SystemClock())
    files = found.certificate
    for name in (NAME, str(found.service.address)):
        handshake(files.server, files.server_key, files.authority, name)
    for name in ("api.localhost", "169.254.169.254", f"bucket.{NAME}"):
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(files.server, files.server_key, files.authority, name)


def test_it_stays_after_a_restart_and_differs_between_clouds(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "one")
    first, again = (workload_storage(settings, SystemClock()) for _ in range(2))
    assert first.certificate.authority.read_bytes() == again.certificate.authority.read_bytes()
    other = workload_storage(replace(settings, home=tmp_path / "two", cloud_number=1), SystemClock())
    assert first.service.address == again.service.address != other.service.address
    assert first.service.host_name == other.service.host_name == NAME
    assert (first.service.port, first.service.target_port > 0) == (443, True)
    assert f"--workload-port={first.service.target_port}" in first.arguments()
