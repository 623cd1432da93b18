# pyright: standard
"""Run a PostgreSQL server for tests: started from the machine's packages, removed afterwards.

It listens on a socket in a temporary folder only. The server refuses to run as root, so root lends it to an
unprivileged user. Nothing is flushed to disk: what a power cut would lose is not what the tests ask.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

_START_SECONDS = 90
_OPTIONS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "listen_addresses": "",
    "max_connections": "50",
    "shared_buffers": "32MB",
}


@dataclass
class Postgres:
    """A server that can be stopped and started again; its data stays."""

    address: str
    """Address of its empty database, as `open_store` takes it."""
    run: Callable[[], AbstractContextManager[str]]
    running: ExitStack

    def start(self) -> None:
        self.running.enter_context(self.run())

    def stop(self) -> None:
        """End all connections at once, as a crash does."""
        self.running.close()


@contextmanager
def running_postgres() -> Iterator[str]:
    """Yield the address of a fresh server's empty database, as `open_store` takes it."""
    with stoppable_postgres() as server:
        yield server.address


@contextmanager
def stoppable_postgres() -> Iterator[Postgres]:
    binaries = _binaries()
    folder = Path(tempfile.mkdtemp(prefix="neocloud-pg-"))
    user = _unprivileged_user()
    initdb = [binaries / "initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust", "--no-sync"]
    try:
        if user is not None:
            shutil.chown(folder, user)
        subprocess.run([*_as(user), *initdb], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        with ExitStack() as running:
            address = running.enter_context(_server(binaries, folder, user))
            yield Postgres(address, lambda: _server(binaries, folder, user), running)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _server(binaries: Path, folder: Path, user: str | None) -> Iterator[str]:
    options = [part for name, value in _OPTIONS.items() for part in ("-c", f"{name}={value}")]
    # The kernel stops it when the tests are killed.
    command = [*_as(user), "--pdeathsig", "QUIT", binaries / "postgres", "-D", folder / "data", "-k", folder]
    address = f"postgresql://postgres@/postgres?host={folder}"
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([*command, *options], cwd=folder, stderr=log)
    try:
        _wait_until_ready(server, address, folder / "log")
        yield address
    finally:
        server.send_signal(signal.SIGQUIT)  # "immediate shutdown": nothing of it is kept
        server.wait()


def _binaries() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("postgres")
    if on_path:
        return Path(on_path).parent
    raise FileNotFoundError("PostgreSQL's server is not installed. Run: apt-get install postgresql")


def _unprivileged_user() -> str | None:
    """Return the user to run it as; None when this process is not root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


def _as(user: str | None) -> list[str]:
    """The words before a command that run it as this user.

    With subprocess's own `user=` Python calls fork instead of vfork. Then gRPC's fork handlers run in the
    child of a process with threads, and may crash it.
    """
    if user is None:
        return ["setpriv"]
    return ["setpriv", "--reuid", user, "--regid", str(pwd.getpwnam(user).pw_gid), "--init-groups"]


def _wait_until_ready(server: subprocess.Popen, address: str, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            psycopg.connect(address).close()
            return
        except psycopg.OperationalError as error:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {log.read_text()[-2000:]}") from error
        time.sleep(0.02)
