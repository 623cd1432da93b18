"""The cloud's own authority cannot sign for names that are not the cloud's, even for a thief of its key."""

import datetime
import subprocess
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from neocloud.server import certificates
from neocloud.server.certificates import CertificateFolder, ensure_certificate, server_names

NOW = datetime.datetime.now(datetime.UTC)
NAMES = server_names(("api.localhost", "api.nebius.cloud"), ("192.0.2.7",))


def verifies(folder: Path, host: str) -> bool:
    """Return whether OpenSSL accepts the server certificate in the folder, for a host name or an address."""
    files = CertificateFolder(folder)
    option = "-verify_ip" if host[0].isdigit() else "-verify_hostname"
    command = ["openssl", "verify", "-CAfile", str(files.authority), option, host, str(files.server)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def sign_for(folder: Path, *names: str) -> None:
    """Sign a certificate as somebody who has the authority's key would."""
    files = CertificateFolder(folder)
    key = serialization.load_pem_private_key(files.authority_key.read_bytes(), None)
    authority = x509.load_pem_x509_certificate(files.authority.read_bytes())
    certificates._sign_server(files, authority, key, names, NOW)  # type: ignore[arg-type]


def test_its_own_names_verify(tmp_path: Path) -> None:
    ensure_certificate(tmp_path, NAMES, NOW)
    hosts = ("localhost", "compute.api.localhost", "compute.api.nebius.cloud", "127.0.0.1", "192.0.2.7")
    assert [host for host in hosts if not verifies(tmp_path, host)] == []


def test_no_other_name_verifies(tmp_path: Path) -> None:
    ensure_certificate(tmp_path, NAMES, NOW)
    for host in ("bank.example", "nebius.cloud", "local.host"):
        sign_for(tmp_path, host)
        assert not verifies(tmp_path, host), host
    sign_for(tmp_path, "localhost")
    assert verifies(tmp_path, "localhost")


def test_new_names_get_a_new_authority(tmp_path: Path) -> None:
    first = ensure_certificate(tmp_path, NAMES, NOW)
    second = ensure_certificate(tmp_path, (*NAMES, "cloud.example"), NOW)
    assert second.authority != first.authority
    assert verifies(tmp_path, "cloud.example") and verifies(tmp_path, "compute.api.localhost")


def test_an_authority_of_an_earlier_release_stays(tmp_path: Path) -> None:
    ensure_certificate(tmp_path, NAMES, NOW)
    files = CertificateFolder(tmp_path)
    key = serialization.load_pem_private_key(files.authority_key.read_bytes(), None)
    name = x509.load_pem_x509_certificate(files.authority.read_bytes()).subject
    old = (
        certificates._builder(name, name, key.public_key(), NOW, certificates.AUTHORITY_LIFETIME)  # type: ignore[arg-type]
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(certificates._usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())  # type: ignore[arg-type]
    )
    files.authority.write_bytes(old.public_bytes(serialization.Encoding.PEM))
    kept = ensure_certificate(tmp_path, (*NAMES, "cloud.example"), NOW)
    assert kept.authority == old.public_bytes(serialization.Encoding.PEM)
    assert verifies(tmp_path, "cloud.example")
