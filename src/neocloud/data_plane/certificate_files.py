"""A server's certificate and key in files, which connections that begin later follow when they change."""

import logging
import ssl
import threading
import time
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

WARN_AFTER_SECONDS = 5.0
"""Files that cannot be used for so long are named in the log. In a renewal, key and certificate do not match
for a moment."""


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
        """Identity of the files when their content was last judged."""
        self._fault = ""
        """Why that content cannot be used; empty when it can."""
        self._loaded: LoadedCertificate | None = None
        self._problem, self._problem_since, self._is_logged = "", 0.0, False

    def load(self) -> LoadedCertificate:
        """Return the newest usable certificate. Raises CertificateUnusable when there has been none."""
        with self._lock:
            try:
                problem = self._follow()
            except OSError as error:  # of this moment: too many open files, a file that is being replaced
                problem = str(error)
            if self._loaded is None:
                self._seen = None
                raise CertificateUnusable(
                    f"{self._unusable(problem)} Name other files with"
                    " `neo up --tls-certificate FILE --tls-key FILE`."
                )
            self._note(problem)
            return self._loaded

    def _follow(self) -> str:
        """Read the files if they changed; return why they cannot be used. Raises OSError."""
        seen = (_looks(self.chain), _looks(self.key))
        if seen != self._seen:
            try:
                self._loaded = self._read()
                self._fault = ""
                logger.debug("The certificate %s is served from now on", self.chain)
            except ssl.SSLError as error:
                self._fault = str(error)
            self._seen = seen
        return self._fault

    def _read(self) -> LoadedCertificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        chain, key = self.chain.read_bytes(), self.key.read_bytes()
        context.load_cert_chain(self.chain, self.key, "")  # OpenSSL asks the terminal without a passphrase
        if (chain, key) != (self.chain.read_bytes(), self.key.read_bytes()):
            raise OSError("they changed while they were read")
        return LoadedCertificate(chain, key, context)

    def _note(self, problem: str) -> None:
        """Log a problem once, when it has lasted."""
        if problem != self._problem:
            self._problem, self._problem_since, self._is_logged = problem, time.monotonic(), False
        has_lasted = time.monotonic() - self._problem_since >= WARN_AFTER_SECONDS
        if problem and has_lasted and not self._is_logged:
            self._is_logged = True
            logger.warning("%s The previous one is still served.", self._unusable(problem))

    def _unusable(self, problem: str) -> str:
        return f"The certificate and its key, {self.chain} and {self.key}, cannot be used: {problem}."


def _looks(path: Path) -> object:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
