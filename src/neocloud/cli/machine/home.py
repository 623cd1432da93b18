"""The state folder of a cloud on this machine, as the command line sees it.

The server owns what is in it. The command line adds `neo.json` (how `neo up` was called, so that the next one
need not be told again; also the mark that the folder is ours), `database-url` where that holds a password,
`neo.lock` and the server's log.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path

from neocloud import database_url
from neocloud.client.errors import ClientError
from neocloud.core.osfiles import HeldLock, take_lock, write_file
from neocloud.core.private_folder import OpenFolder, ensure_private

SERVER_MODULE = "neocloud.app"


@dataclass(frozen=True)
class Options:
    """How the server is started; kept so that `neo up` after `neo down` brings back the same cloud."""

    grpc_port: int = 7370
    http_port: int = 7371
    gateway_port: int = 8900
    gateway_hosts: tuple[str, ...] = ()
    media_domains: tuple[str, ...] = ()
    tls_port: int | None = None
    """None: no TLS."""
    host: str = ""
    domain: str = ""
    database_url: str = field(default="", repr=False)
    database_url_file: str = ""
    """The operator's own, in place of the URL."""
    price_file: str = ""
    quota_file: str = ""
    model_folders: tuple[str, ...] = ()
    audit_days: int = 0
    history_days: int = 0
    """0: as long as the server keeps them by itself."""
    calls_per_second: float | None = None
    sign_ins_per_second: float | None = None
    """None: what the server allows by itself; 0: no limit."""
    public_pool: str = ""
    opened_ranges: tuple[str, ...] = ()
    allow_private_issuers: bool = False
    issuer_hosts: tuple[str, ...] = ()
    login_ports: str = ""
    """"": the server's default."""
    emulator: bool = False
    emulator_gpus: str = ""

    def arguments(self) -> list[str]:
        given = ["--grpc-port", str(self.grpc_port), "--http-port", str(self.http_port)]
        given += ["--gateway-port", str(self.gateway_port)]
        given += [f"--gateway-host={host}" for host in self.gateway_hosts]
        given += [f"--media-domain={domain}" for domain in self.media_domains]
        if self.tls_port is not None:
            # Where the port is any that is free, the redirector's must be, too.
            given += [
                "--tls-port",
                str(self.tls_port),
                *(["--redirector-port=0"] if not self.tls_port else []),
            ]
        if self.host:
            given += ["--host", self.host]
        if self.domain:
            given += ["--domain", self.domain]
        if self.database_url_file:
            given += ["--database-url-file", self.database_url_file]
        if self.price_file:
            given += ["--price-file", self.price_file]
        if self.quota_file:
            given += ["--quota-file", self.quota_file]
        for folder in self.model_folders:
            given += ["--model-folder", folder]
        if self.public_pool:
            given += ["--public-pool", self.public_pool]
        for opened in self.opened_ranges:
            given += ["--allow-egress", opened]
        given += self._about_issuers() + self._about_rates() + self._about_login_ports()
        given += self._about_keeping()
        if self.emulator:
            given += ["--emulator", "--emulator-gpus", self.emulator_gpus]
        return given

    def environment(self) -> dict[str, str]:
        """The server's: with the database's URL, since arguments can be read by every user of the machine.
        One that our own environment names does not take the place of the one that is kept."""
        inherited = {name: value for name, value in os.environ.items() if name != database_url.VARIABLE}
        return inherited | ({database_url.VARIABLE: self.database_url} if self.database_url else {})

    def _about_keeping(self) -> list[str]:
        given = ["--audit-days", str(self.audit_days)] if self.audit_days else []
        return given + (["--history-days", str(self.history_days)] if self.history_days else [])

    def _about_rates(self) -> list[str]:
        rates = {
            "--calls-per-second": self.calls_per_second,
            "--sign-ins-per-second": self.sign_ins_per_second,
        }
        return [f"{name}={rate}" for name, rate in rates.items() if rate is not None]

    def _about_login_ports(self) -> list[str]:
        return ["--login-ports", self.login_ports] if self.login_ports else []

    def _about_issuers(self) -> list[str]:
        allowed = ["--allow-private-issuers"] if self.allow_private_issuers else []
        return allowed + [f"--issuer-host={host}" for host in self.issuer_hosts]


@dataclass(frozen=True)
class RunningServer:
    """What the server wrote about itself."""

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

    @property
    def _database_url_file(self) -> Path:
        """Apart from the other options, which people show to each other."""
        return self.path / "database-url"

    def is_ours(self) -> bool:
        return (self.path / "neo.json").exists() or (self.path / "server.lock").exists()

    def was_started(self) -> bool:
        """A server was ready on this folder at least once."""
        return self.credentials_file.exists()

    def create(self) -> None:
        """Make the folder; refuses one that holds something else, because `neo destroy` empties it."""
        try:
            is_new = not self.is_ours()
            if is_new:
                self._refuse_other_files()
            ensure_private(self.path)
            if is_new:
                self.keep_options(Options())
            self.log_file.parent.mkdir(exist_ok=True, mode=0o700)
        except OpenFolder as error:
            raise ClientError("FAILED_PRECONDITION", error.why, error.next_step) from error
        except OSError as error:
            raise _unusable(self.path, error) from error

    def _refuse_other_files(self) -> None:
        if self.path.exists() and any(self.path.iterdir()):
            raise ClientError(
                "FAILED_PRECONDITION",
                f"{self.path} already holds other files, and a state folder belongs to Neocloud alone",
                "Name an empty or a new folder with --home",
            )

    def options(self) -> Options:
        try:
            document = json.loads((self.path / "neo.json").read_text())
        except (OSError, ValueError):
            return Options()
        known = {item.name for item in fields(Options)}
        options = Options(**{key: value for key, value in document.items() if key in known})
        if options.database_url or options.database_url_file:
            return options
        try:
            return replace(options, database_url=self._database_url_file.read_text())
        except OSError:
            return options

    def keep_options(self, options: Options) -> None:
        has_secret = database_url.has_password(options.database_url)
        shown = replace(options, database_url="") if has_secret else options
        try:
            if has_secret:
                write_file(self._database_url_file, options.database_url)
            write_file(self.path / "neo.json", json.dumps(asdict(shown), indent=2) + "\n")
            if not has_secret:
                self._database_url_file.unlink(missing_ok=True)
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
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return server if is_server_process(server.pid) else None

    @contextmanager
    def locked(self, on_wait: Callable[[], None]) -> Iterator[None]:
        """One `neo up`, `down` or `destroy` at a time; `on_wait` is called when another one is at work."""
        lock = self._take_lock(on_wait)
        try:
            yield
        finally:
            lock.release()

    def _take_lock(self, on_wait: Callable[[], None]) -> HeldLock:
        while True:
            try:
                return take_lock(self.path / "neo.lock", wait=True, on_wait=on_wait)
            except FileNotFoundError:
                # The holder before us was `neo destroy`, which removed the folder.
                self.create()
            except OSError as error:
                raise _unusable(self.path, error) from error


def is_server_process(pid: int) -> bool:
    """Whether `pid` is alive and a server of ours, not another process that got its number."""
    try:
        return SERVER_MODULE.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


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
