"""The cloud's own certificate authority, and the server certificate that it signs.

Both lie in the home folder, private keys readable by their owner only. The authority is made once and stays:
clients were set to trust it. It can sign for this cloud's own names only (name constraints), so who trusts
it need not fear for other names. Addresses are not constrained: gRPC's TLS library refuses every certificate
with addresses then. When the cloud gets names beyond those, a new authority is made, and clients have to
trust that one. Authorities of earlier releases have no constraints and stay; removing `ca.pem` and `ca.key`
makes a new one. An authority that has expired is replaced too; one that was made while the clock was ahead is
signed again with its own key. The one that is replaced is kept beside, as
`ca.pem.old` and `ca.key.old`: a clock that was wrong for a moment must not cost it. Names for which a public
authority signs are left out where a new authority would be needed for them alone. The server certificate is
made again when its names change or its end is near; `data_plane.certificate_files` serves it from then on.
"""

import datetime
import ipaddress
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from neocloud.core.contract import api_host_names
from neocloud.core.osfiles import write_file
from neocloud.server.listening import ServerError

AUTHORITY_LIFETIME = datetime.timedelta(days=3650)
SERVER_LIFETIME = datetime.timedelta(days=397)
RENEW_BEFORE = datetime.timedelta(days=60)
_LEEWAY = datetime.timedelta(days=1)
"""Clients' clocks may be hours behind, as when one takes its local time for UTC."""

Key = ec.EllipticCurvePrivateKey
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerCertificate:
    """The files of a TLS listener, in PEM form; `authority` is what clients have to trust."""

    key: bytes
    chain: bytes
    authority: bytes
    """Empty for a certificate that somebody else issued."""
    key_file: Path
    chain_file: Path


@dataclass(frozen=True)
class CertificateFolder:
    """`ca.pem` is for everybody; the rest is the server's."""

    path: Path

    @property
    def authority(self) -> Path:
        return self.path / "ca.pem"

    @property
    def authority_key(self) -> Path:
        return self.path / "ca.key"

    @property
    def server(self) -> Path:
        return self.path / "server.pem"

    @property
    def server_key(self) -> Path:
        return self.path / "server.key"


def server_names(domains: Sequence[str], hosts: Sequence[str]) -> tuple[str, ...]:
    """Every name and address that clients may use: hosts, domains, the API's names under each domain."""
    under = [f"{name}.{domain}" for domain in domains for name in api_host_names()]
    return tuple(dict.fromkeys(["localhost", "127.0.0.1", *hosts, *domains, *under]))


def ensure_certificate(
    folder: Path, names: Sequence[str], now: datetime.datetime, *, optional: Sequence[str] = ()
) -> ServerCertificate:
    """Return the certificate for exactly these names, made or renewed where needed.

    The `optional` ones among them are left out where the authority that is there may not sign for them.
    Raises OSError, and ServerError for an authority that cannot be used.
    """
    files = CertificateFolder(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority, authority_key = _ensure_authority(files, names, optional, now)
    names = [name for name in names if name not in optional or _may_sign(authority, (name,))]
    if not _serves(files, authority, names, now):
        _sign_server(files, authority, authority_key, names, now)
    return ServerCertificate(
        files.server_key.read_bytes(),
        files.server.read_bytes(),
        files.authority.read_bytes(),
        files.server_key,
        files.server,
    )


def read_certificate(chain: Path, key: Path, now: datetime.datetime) -> ServerCertificate:
    """Return a certificate that somebody else issued. Raises ServerError when it cannot serve."""
    try:
        found = x509.load_pem_x509_certificate(chain.read_bytes())
        private = serialization.load_pem_private_key(key.read_bytes(), None)
        is_open = bool(key.stat().st_mode & 0o007)
    except OSError as error:
        raise ServerError(f"{error.filename} cannot be read: {error.strerror}. Name another file.") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ServerError(
            f"{chain} and {key} are not a certificate and its key in PEM form, without a passphrase: {error}"
        ) from error
    if private.public_key() != found.public_key():
        raise ServerError(
            f"{key} is not the key of the certificate {chain}. Name the files that go together."
        )
    if not found.not_valid_before_utc <= now < found.not_valid_after_utc:
        until = found.not_valid_after_utc
        raise ServerError(f"The certificate {chain} is not valid now; it ends on {until:%Y-%m-%d}. Renew it.")
    if is_open:
        raise ServerError(f"Every user of this machine may use the key {key}. Close it: chmod 0600 {key}")
    return ServerCertificate(key.read_bytes(), chain.read_bytes(), b"", key, chain)


def names_of(chain: Path) -> tuple[str, ...]:
    """Return the names and addresses in a certificate, without wildcards; none if it cannot be read."""
    try:
        certificate = x509.load_pem_x509_certificate(chain.read_bytes())
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound, x509.DuplicateExtension):
        return ()
    names = [*found.get_values_for_type(x509.DNSName), *found.get_values_for_type(x509.IPAddress)]
    return tuple(str(name).lower() for name in names if "*" not in str(name))


def _ensure_authority(
    files: CertificateFolder, names: Sequence[str], optional: Sequence[str], now: datetime.datetime
) -> tuple[x509.Certificate, Key]:
    if files.authority.exists() and files.authority_key.exists():
        found, key = _read_authority(files)
        needed = [name for name in names if name not in optional]
        if found.not_valid_after_utc > now and _may_sign(found, needed):
            is_early = found.not_valid_before_utc > now
            return (_sign_authority_again(files, found, key, now) if is_early else found), key
        logger.warning(
            "the authority has expired or may not sign for all names: clients must trust a new %s; the one"
            " before is kept beside it, as .old",
            files.authority,
        )
        for each in (files.authority_key, files.authority):
            _keep_old(each)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Neocloud certificate authority")])
    certificate = (
        _builder(name, name, key.public_key(), now, AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.NameConstraints(_permitted(names), None), critical=True)
        .sign(key, hashes.SHA256())
    )
    write_file(files.authority_key, _pem_key(key), 0o600, durable=True)
    write_file(files.authority, certificate.public_bytes(serialization.Encoding.PEM), 0o644, durable=True)
    return certificate, key


def _sign_authority_again(
    files: CertificateFolder, found: x509.Certificate, key: Key, now: datetime.datetime
) -> x509.Certificate:
    """Replace an authority that was made while the clock was ahead by one that begins now.

    Key, names and end stay, so clients that trust the one before work, too, once that begins.
    """
    logger.warning(
        "the authority %s is not valid before %s, as it was made while the clock was ahead; it begins now."
        " Its key is the same; people on other machines who trust the one before sign in again: neo login",
        files.authority,
        f"{found.not_valid_before_utc:%Y-%m-%d %H:%M} UTC",
    )
    builder = (
        x509.CertificateBuilder(found.issuer, found.subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _LEEWAY)
        .not_valid_after(found.not_valid_after_utc)
    )
    for extension in found.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    certificate = builder.sign(key, hashes.SHA256())
    if not _old(files.authority_key).exists():
        _keep_old(files.authority)  # an older authority, with its key, is worth more
    write_file(files.authority, certificate.public_bytes(serialization.Encoding.PEM), 0o644, durable=True)
    return certificate


def _keep_old(file: Path) -> None:
    write_file(_old(file), file.read_bytes(), durable=True)


def _old(file: Path) -> Path:
    return file.with_name(f"{file.name}.old")


def _read_authority(files: CertificateFolder) -> tuple[x509.Certificate, Key]:
    """Raises OSError, and ServerError when the files are not an authority of ours."""
    try:
        key = serialization.load_pem_private_key(files.authority_key.read_bytes(), None)
        found = x509.load_pem_x509_certificate(files.authority.read_bytes())
        if not isinstance(key, Key):
            raise ValueError("the key is not an elliptic curve key")
        if found.public_key() != key.public_key():
            raise ValueError("the key belongs to another certificate")
        _ = found.extensions  # parsed when it is first used
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension) as error:
        raise ServerError(
            f"The cloud's certificate authority, {files.authority} and {files.authority_key}, cannot be used:"
            f" {error}. Restore both files from a backup; or remove both and run `neo down` and `neo up`,"
            " which makes another authority that clients have to trust."
        ) from error
    return found, key


def _permitted(names: Sequence[str]) -> list[x509.GeneralName]:
    """The shortest list that holds all names; a name stands for all under it."""
    domains = _domains(names)
    return [x509.DNSName(each) for each in domains if not any(each.endswith(f".{o}") for o in domains)]


def _may_sign(authority: x509.Certificate, names: Sequence[str]) -> bool:
    """Return whether the authority's constraints, where it has any, hold all these names."""
    try:
        found = authority.extensions.get_extension_for_class(x509.NameConstraints).value
    except x509.ExtensionNotFound:
        return True
    permitted = [each.value for each in found.permitted_subtrees or () if isinstance(each, x509.DNSName)]
    return all(
        any(name == domain or name.endswith(f".{domain}") for domain in permitted) for name in _domains(names)
    )


def _domains(names: Sequence[str]) -> list[str]:
    return [name.value for name in _alternative_names(names) if isinstance(name, x509.DNSName)]


def _serves(
    files: CertificateFolder, authority: x509.Certificate, names: Sequence[str], now: datetime.datetime
) -> bool:
    """Return whether the certificate in the file is ours, for these names, and valid for a while."""
    try:
        certificate = x509.load_pem_x509_certificate(files.server.read_bytes())
        certificate.verify_directly_issued_by(authority)
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        key = serialization.load_pem_private_key(files.server_key.read_bytes(), None)
    except (
        OSError,
        ValueError,
        TypeError,
        InvalidSignature,
        UnsupportedAlgorithm,
        x509.ExtensionNotFound,
        x509.DuplicateExtension,
    ):
        return False
    if certificate.not_valid_before_utc > now:
        return False  # signed while the clock was ahead
    ends_at = certificate.not_valid_after_utc
    has_time = ends_at - now > RENEW_BEFORE or now < ends_at == authority.not_valid_after_utc
    # A server that died between the two writes left the key of another certificate.
    is_pair = key.public_key() == certificate.public_key()
    return has_time and is_pair and list(found) == _alternative_names(names)


def _sign_server(
    files: CertificateFolder,
    authority: x509.Certificate,
    authority_key: Key,
    names: Sequence[str],
    now: datetime.datetime,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Neocloud API")])
    lifetime = min(SERVER_LIFETIME, authority.not_valid_after_utc - now)
    certificate = (
        _builder(subject, authority.subject, key.public_key(), now, lifetime)
        .add_extension(x509.SubjectAlternativeName(_alternative_names(names)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    write_file(files.server_key, _pem_key(key), 0o600, durable=True)
    write_file(files.server, certificate.public_bytes(serialization.Encoding.PEM), 0o644, durable=True)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    lifetime: datetime.timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _LEEWAY)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_names(names: Sequence[str]) -> list[x509.GeneralName]:
    return [_alternative_name(name) for name in names]


def _alternative_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem_key(key: Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
