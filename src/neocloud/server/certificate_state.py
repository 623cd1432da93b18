"""Until when the certificate of the TLS listeners is valid, and what the operator has to do about it."""

import datetime
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

WARN_BEFORE = datetime.timedelta(days=14)
UNUSABLE_AT_START = "The certificate and its key cannot be used at the next start: "
"""Begins what is said of an operator's files that a start would refuse."""


@dataclass(frozen=True)
class CertificateState:
    """The validity of the TLS listeners' certificate, for `neo status`."""

    file: Path
    ends_at: datetime.datetime
    is_own: bool
    """Signed by the cloud's own authority, and so renewed by the server."""
    problem: str = ""
    """The action that the operator has to take; empty for none."""
    ends_with_authority: bool = False
    """No renewal before then: the cloud's authority ends too, and clients have to trust its successor."""

    def is_expired(self, now: datetime.datetime) -> bool:
        return self.ends_at <= now


def certificate_state(
    chain: bytes, file: Path, now: datetime.datetime, *, authority: bytes
) -> CertificateState:
    """Return the state of the certificate that is served. `authority` is the cloud's own, in PEM form; empty
    when somebody else issued the certificate. Raises ValueError when it is none."""
    found = x509.load_pem_x509_certificate(chain)
    is_own, begins_at, ends_at = bool(authority), found.not_valid_before_utc, found.not_valid_after_utc
    issuer = x509.load_pem_x509_certificate(authority) if is_own else found
    is_last = is_own and issuer.not_valid_after_utc <= ends_at
    is_of_authority = is_own and issuer.not_valid_before_utc > now
    begins_at = max(begins_at, issuer.not_valid_before_utc)
    if begins_at > now:
        what = (
            f"The certificate {file} is not valid before {begins_at:%Y-%m-%d %H:%M} UTC, so clients on other"
            " machines cannot connect. Check this machine's clock: `timedatectl`."
        )
        advice = "" if not is_own else _AUTHORITY_AGAIN if is_of_authority else _SIGNED_AGAIN
        return CertificateState(file, ends_at, is_own, what + advice, is_last)
    if ends_at - now > WARN_BEFORE:
        return CertificateState(file, ends_at, is_own, "", is_last)
    is_expired = ends_at <= now
    what = f"The certificate {file} {'expired' if is_expired else 'expires'} at {ends_at:%Y-%m-%d %H:%M} UTC."
    if is_expired:
        what += " Clients on other machines cannot connect."
    advice = _RENEW_AUTHORITY if is_last else _RENEW_OWN if is_own else _RENEW_GIVEN
    return CertificateState(file, ends_at, is_own, what + advice, is_last)


_SIGNED_AGAIN = " If it is right now, `neo down` and `neo up` sign another certificate."
_AUTHORITY_AGAIN = (
    " If it is right now, `neo down` and `neo up` sign it and the cloud's certificate authority again; people"
    " on other machines who signed in before then do that again: `neo login`."
)
_RENEW_AUTHORITY = (
    " The cloud's certificate authority ends then too. Within an hour of that, the server makes another one;"
    " people on other machines then have to trust it: `neo login`."
)
_RENEW_OWN = (
    " The server has not renewed it; its log says why: `neo logs`. `neo down` and `neo up` sign another one."
)
_RENEW_GIVEN = (
    " Write its successor and the key to the same files: the server reads them without a restart. Or name"
    " others: `neo up --tls-certificate FILE --tls-key FILE`."
)
