"""The state folder of a cloud on this machine, as the command line sees it.

The server owns what is in it. The command line adds `config.json` (what was chosen by the options of
`neo up`; also the mark that the folder is ours), `database-url` where that holds a password, `neo.lock` and
the server's log.
"""

import json
import os
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile, config_file, exists_in_home, read_profiles
from neocloud.control_plane.settings_file import (
    CONFIG_FILE,
    EARLIER_FILE,
    LOCK_FILE,
    BadSettings,
    read_settings,
    write_settings,
)
from neocloud.core.osfiles import HeldLock, Locked, OpenFolder, ensure_private, locked, take_lock
from neocloud.settings.settings import Settings

SERVER_MODULE = "neocloud.control_plane"
EARLIER_SERVER_MODULE = "neocloud.app"
"""The module that `neo up` of earlier versions started; such a server may still run."""


_DESTROY_WORKS = "; `neo destroy` works without it"
NOTHING_REAL = "This is an emulator: nothing real runs in it, no machine, no container, no job."


@dataclass(frozen=True)
class RunningServer:
    """The record that the server wrote about itself."""

    pid: int
    grpc: str
    http: str
    version: str
    ready_since: datetime
    tls: str = ""
    """Address of gRPC over TLS; "" when it is off."""
    redirector: str = ""
    gateway: str = ""
    """Address of the OpenAI-compatible API; "" where there is none."""
    listen: tuple[str, ...] = ()
    """Addresses on which other machines reach it, over TLS; "all" stands for each."""
    https_port: int = 0
    """Port of the JSON API there."""
    gateway_tls_port: int = 0
    s3: str = ""
    """Host and port of object storage."""
    s3_tls_port: int = 0
    """Port of the OpenAI-compatible API there; 0: none."""
    login_addresses: tuple[str, ...] = ()
    """Addresses with ssh ports of Slurm login nodes; "0.0.0.0" stands for each of IPv4."""
    login_ports: tuple[int, int] = (0, 0)
    """The first and the last of these ports."""
    settings: Mapping[str, object] | None = None
    """Settings of the start that are no defaults, as in `config.json`; None where it does not say so."""


@dataclass(frozen=True)
class Home:
    path: Path

    @property
    def credentials_file(self) -> Path:
        return self.path / "credentials.json"

    @property
    def authority_file(self) -> Path:
        """The certificate that clients of the TLS API have to trust."""
        return self.path / "tls" / "ca.pem"

    @property
    def log_file(self) -> Path:
        return self.path / "log" / "server.log"

    @property
    def known_hosts(self) -> Path:
        return self.path / "known_hosts"

    def is_ours(self) -> bool:
        """Return whether `neo up` or a server made this folder. Raises ClientError if it is closed to us."""
        return any(exists_in_home(self.path / name) for name in (CONFIG_FILE, EARLIER_FILE, "server.lock"))

    def was_started(self) -> bool:
        """A server was ready on this folder at least once. Raises ClientError if it is closed to us."""
        return exists_in_home(self.credentials_file)

    def create(self) -> None:
        """Make the folder; refuses one that holds something else, because `neo destroy` empties it.

        Its first settings are written under its lock, since `neo restore` may put a cloud there.
        """
        try:
            is_new = not self.is_ours()
            if is_new and self._has_other_files():
                self._await_first_settings()
            ensure_private(self.path)
            if is_new:
                with locked(self.path / LOCK_FILE, wait=True):
                    if not self.is_ours():
                        if self._has_other_files():
                            raise self._not_ours()
                        write_settings(Settings(home=self.path))
            self.log_file.parent.mkdir(exist_ok=True, mode=0o700)
        except OpenFolder as error:
            raise ClientError("FAILED_PRECONDITION", error.why, error.next_step) from error
        except OSError as error:
            raise _unusable(self.path, error) from error

    def _has_other_files(self) -> bool:
        return self.path.exists() and any(path.name != LOCK_FILE for path in self.path.iterdir())

    def _await_first_settings(self) -> None:
        """Wait for another command that makes the folder: it holds the lock until its settings are written.
        Raises ClientError where the folder is not ours then."""
        if (self.path / LOCK_FILE).exists():
            with locked(self.path / LOCK_FILE, wait=True):
                pass
        if not self.is_ours():
            raise self._not_ours()

    def _not_ours(self) -> ClientError:
        return ClientError(
            "FAILED_PRECONDITION",
            f"{self.path} already holds other files, and a state folder belongs to Neocloud alone",
            "Name an empty or a new folder with --home",
        )

    def settings(self) -> Settings:
        """Return what was chosen for this cloud, the defaults where nothing was.

        Raises ClientError when that cannot be read.
        """
        try:
            return read_settings(self.path)
        except BadSettings as error:
            what, _, next_step = str(error).rpartition(". Fix")
            raise ClientError(
                "FAILED_PRECONDITION", what, f"Fix{next_step.rstrip('.')}{_DESTROY_WORKS}"
            ) from error
        except PermissionError as error:
            raise ClientError(
                "PERMISSION_DENIED",
                f"{error.filename} cannot be read by this user",
                "Run the command as root, or as the user who started the cloud",
            ) from error
        except OSError as error:
            raise ClientError(
                "FAILED_PRECONDITION",
                f"{error.filename or self.path / CONFIG_FILE} cannot be read: {error.strerror or error}",
                f"Repair it, or restore it from a copy{_DESTROY_WORKS}",
            ) from error

    def keep_settings(self, settings: Settings) -> None:
        try:
            write_settings(settings)
        except OSError as error:
            raise _unusable(self.path, error) from error

    def server(self) -> RunningServer | None:
        """The server that runs on this folder, or None."""
        try:
            file = self.path / "server.json"
            document = json.loads(file.read_text())
            # The server writes the file when it is ready and never again.
            ready_since = datetime.fromtimestamp(file.stat().st_mtime, UTC)
            server = RunningServer(
                pid=int(document["pid"]),
                grpc=document["grpc"],
                http=document["http"],
                version=document["version"],
                ready_since=ready_since,
                tls=document.get("tls", ""),
                redirector=document.get("redirector", ""),
                gateway=document.get("gateway", ""),
                listen=tuple(document.get("listen", ())),
                https_port=int(document.get("https_port", 0)),
                gateway_tls_port=int(document.get("gateway_tls_port", 0)),
                s3=document.get("s3", ""),
                s3_tls_port=int(document.get("s3_tls_port", 0)),
                login_addresses=tuple(document.get("login_addresses", ())),
                login_ports=_port_range(document.get("login_ports", (0, 0))),
                settings=document.get("settings"),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return server if is_server_process(server.pid, self.path) else None

    @contextmanager
    def locked(self, on_wait: Callable[[], None], *, may_create: bool = True) -> Generator[None]:
        """One `neo up`, `down` or `destroy` at a time; `on_wait` is called when another one is at work."""
        lock = self._take_lock(on_wait, may_create=may_create)
        try:
            yield
        finally:
            lock.release()

    def is_locked(self) -> bool:
        """Return whether another command works on the folder."""
        try:
            take_lock(self.path / LOCK_FILE).release()
        except Locked:
            return True
        except OSError:
            return False
        return False

    def _take_lock(self, on_wait: Callable[[], None], *, may_create: bool) -> HeldLock:
        while True:
            try:
                return take_lock(self.path / LOCK_FILE, wait=True, on_wait=on_wait)
            except FileNotFoundError:
                # The holder before us was `neo destroy`, which removed the folder.
                if not may_create:
                    raise no_cloud_in(self.path) from None
                self.create()
            except OSError as error:
                raise _unusable(self.path, error) from error


def _port_range(ports: Sequence[int]) -> tuple[int, int]:
    first, last = ports
    return int(first), int(last)


def is_server_process(pid: int, home: Path) -> bool:
    """Return whether `pid` is alive and the server of this folder, not a process that got its id later."""
    process = Path(f"/proc/{pid}")
    try:
        arguments = os.fsdecode((process / "cmdline").read_bytes()).split("\0")
    except OSError:
        return False
    return is_server_command(arguments, home, process / "cwd")


def is_server_command(arguments: Sequence[str], home: Path, folder: Path) -> bool:
    """Return whether this command line, run in `folder`, is of a server of this state folder.

    A supervisor names the server's module, too, but does not run it.
    """
    if arguments[1:2] != ["-m"] or arguments[2:3] not in ([SERVER_MODULE], [EARLIER_SERVER_MODULE]):
        return False
    named = [value for option, value in pairwise(arguments) if option == "--home"]
    named += [each.removeprefix("--home=") for each in arguments if each.startswith("--home=")]
    return all(_is_same_folder(folder / each, home) for each in named)


def _is_same_folder(one: Path, other: Path) -> bool:
    try:
        return one == other or one.samefile(other)
    except OSError:
        return False


def no_cloud_in(path: Path) -> ClientError:
    return ClientError(
        "FAILED_PRECONDITION", f"There is no cloud in {path}", "Name its state folder with --home"
    )


def _unusable(path: Path, error: OSError) -> ClientError:
    if isinstance(error, PermissionError):
        return ClientError(
            "PERMISSION_DENIED",
            f"{path} cannot be written",
            "Run as root, or name another folder with --home",
        )
    return ClientError(
        "FAILED_PRECONDITION", f"{path} cannot be used: {error.strerror}", "Name another with --home"
    )


def is_emulated(profile: Profile) -> bool:
    """Return whether the profile's cloud is an emulator on this machine."""
    return bool(profile.home) and Home(Path(profile.home)).settings().emulator


def emulator_home(named: Path | None) -> Home:
    """Return the named folder, else that of the emulator in use, else a new temporary one."""
    if named is not None:
        home = Home(named.absolute())
        if home.was_started() and not home.settings().emulator:
            raise ClientError(
                "FAILED_PRECONDITION",
                f"{home.path} holds a real cloud, and an emulator would forget what runs in it",
                "Name another folder with --home",
            )
        return home
    profiles = read_profiles(config_file())
    current = profiles.items.get(profiles.current)
    if current is not None and current.home:
        with suppress(ClientError):  # a cloud of another user, or a damaged one: not the emulator in use
            if Home(Path(current.home)).settings().emulator:
                return Home(Path(current.home))
    return Home(Path(tempfile.mkdtemp(prefix="neocloud-emulator-")))
