"""A certificate that a public authority issued: what it has to be, and the file that keeps it and its key."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from neocloud.core.osfiles import write_file

RENEW_AFTER, SPREAD = 2 / 3, 1 / 30
"""Parts of its lifetime: when a certificate is renewed at the earliest, and how much later at the latest."""
SHORTEST_USE = timedelta(hours=1)
"""A new certificate that is to be renewed sooner is refused: orders would never end."""
CLOCK_LEEWAY = timedelta(days=1)
"""How far this machine's clock may be behind the authority's."""
MAX_CHAIN = 10


class NotUsable(Exception):
    """Says what is wrong with what an authority issued."""


class OrderFailed(Exception):
    """The message is for the operator."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds until the authority accepts another order, if it says so."""


@dataclass(frozen=True)
class Issued:
    directory: str
    """Directory URL of the authority."""
    key: str
    chain: str
    """Both in PEM form."""
    names: frozenset[str]
    begins_at: datetime
    ends_at: datetime
    renew_at: datetime

    def is_valid(self, now: datetime) -> bool:
        return self.begins_at - CLOCK_LEEWAY <= now < self.ends_at

    def save(self, file: Path) -> None:
        """Write both in one step, for their owner alone. Raises OSError."""
        document = {"directory": self.directory, "key": self.key, "chain": self.chain}
        write_file(file, json.dumps(document), 0o600, durable=True)


def new_key() -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(*form).decode()


def read_issued(file: Path) -> Issued | None:
    """Return what is kept there; None when that is nothing, or cannot be used.

    Raises OSError when that is not known, as while too many files are open.
    """
    with suppress(FileNotFoundError, ValueError, TypeError, KeyError, NotUsable):
        document = json.loads(file.read_text())
        return _issued(str(document["directory"]), str(document["key"]), str(document["chain"]))
    return None


def checked(directory: str, key: str, chain: str, names: Sequence[str], now: datetime) -> Issued:
    """Return what an authority sent, if it is a certificate to serve from now on. Raises NotUsable."""
    found = _issued(directory, key, chain)
    if absent := [name for name in names if name not in found.names]:
        raise NotUsable(f"it is not for {', '.join(absent)}")
    if not found.is_valid(now):
        clock = "; check this machine's clock with `timedatectl`"
        raise NotUsable(f"it is valid from {_time(found.begins_at)} to {_time(found.ends_at)} only{clock}")
    if found.renew_at - now < SHORTEST_USE:
        raise NotUsable(f"it ends at {_time(found.ends_at)}, too soon to be worth an order")
    return found


def _issued(directory: str, key: str, chain: str) -> Issued:
    try:
        private = serialization.load_pem_private_key(key.encode(), None)
        found = x509.load_pem_x509_certificates(chain.encode())
        names = found[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        is_of_key = found[0].public_key() == private.public_key()
        for one, issuer in zip(found, found[1:MAX_CHAIN], strict=False):
            one.verify_directly_issued_by(issuer)
    except InvalidSignature:
        raise NotUsable("the certificates of its chain did not sign each other") from None
    except (
        ValueError,
        TypeError,
        UnsupportedAlgorithm,
        x509.ExtensionNotFound,
        x509.DuplicateExtension,
    ) as error:
        raise NotUsable(f"it is not a chain of certificates ({type(error).__name__})") from None
    if not is_of_key:
        raise NotUsable("it is for another key")
    if len(found) > MAX_CHAIN:
        raise NotUsable(f"its chain has {len(found)} certificates")
    begins_at, ends_at = found[0].not_valid_before_utc, found[0].not_valid_after_utc
    share = RENEW_AFTER + SPREAD * (found[0].serial_number % 1000) / 1000
    return Issued(
        directory,
        key,
        "".join(each.public_bytes(serialization.Encoding.PEM).decode() for each in found),
        frozenset(name.lower() for name in names.get_values_for_type(x509.DNSName)),
        begins_at,
        ends_at,
        begins_at + (ends_at - begins_at) * share,
    )


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
