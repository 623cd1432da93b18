# pyright: strict
"""A server's certificate and key in files, which connections that begin later follow when they change."""

import logging
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)


class CertificateUnusable(Exception):
    """The message names the files and says what to do next."""


@dataclass(frozen=True)
class LoadedCertificate:
    chain: bytes
    key: bytes
    """Both in PEM form."""
    context: ssl.SSLContext


class CertificateFiles:
    """PEM files of a server's certificate and its key, read again when they change.

    Files that cannot be used, as while only one of the two is written, change nothing. May be used by several
    threads.
    """

    def __init__(self, chain: Path, key: Path) -> None:
        self.chain, self.key = chain, key
        self._lock = threading.Lock()
        self._seen: object = None
        """What the files looked like when they were last read, also in vain."""
        self._loaded: LoadedCertificate | None = None

    def load(self) -> LoadedCertificate:
        """Return the newest usable certificate. Raises CertificateUnusable when there has been none."""
        with self._lock:
            try:
                seen = (_looks(self.chain), _looks(self.key))
                if seen != self._seen:
                    self._seen = seen
                    self._loaded = self._read()
                    logger.debug("The certificate %s is served from now on", self.chain)
            except OSError as error:  # ssl.SSLError is one
                self._require_earlier(error)
            assert self._loaded is not None, "It was read, or an error was raised."
            return self._loaded

    def _read(self) -> LoadedCertificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        chain, key = self.chain.read_bytes(), self.key.read_bytes()
        context.load_cert_chain(self.chain, self.key)
        if (chain, key) != (self.chain.read_bytes(), self.key.read_bytes()):
            raise OSError("they changed while they were read")
        return LoadedCertificate(chain, key, context)

    def _require_earlier(self, error: OSError) -> None:
        why = f"The certificate and its key, {self.chain} and {self.key}, cannot be used: {error}."
        if self._loaded is None:
            self._seen = None
            raise CertificateUnusable(
                f"{why} Name other files with `neo up --tls-certificate FILE --tls-key FILE`."
            ) from error
        logger.warning("%s The one of before is still served.", why)


def _looks(path: Path) -> object:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
