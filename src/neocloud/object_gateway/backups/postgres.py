"""Metadata in PostgreSQL: dumped as of one moment with pg_dump, while the gateway writes, and restored with
pg_restore, whole or not at all.

The password is in a file of memory that these programs inherit: in no argument, variable or file of a disk.
"""

import os
import subprocess
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from neocloud.core.osfiles import sync_folder
from neocloud.object_gateway.backups.location import ObjectBackupError
from neocloud.object_gateway.backups.snapshots import DUMP, NAMED, NAMES, Facts, PostgresSnapshot
from neocloud.object_store.blobs.location_record import engine_of
from neocloud.object_store.metadata.connection import Connection
from neocloud.object_store.metadata.location import open_beside
from neocloud.object_store.metadata.postgres import hold_alone
from neocloud.object_store.metadata.postgres_connection import SCHEMA, Session, connect, explain, named
from neocloud.object_store.metadata.schema import MIGRATIONS
from neocloud.object_store.store import KEY_CHECK

_PAGE = f"{NAMED} AND blob > ? ORDER BY blob LIMIT 10000"
_OWN_VARIABLES = "PG"
_SECRETS = ("password", "passfile", "sslpassword")
_HIDDEN_FD = "/proc/self/fd/"


def dump(store: Path, address: str, folder: Path) -> None:
    """Write a snapshot of the metadata of a store into an empty folder. Raises ObjectBackupError,
    StoreUnavailable."""
    with closing(open_beside(store)) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        (moment,) = connection.execute("SELECT pg_export_snapshot()").fetchone()
        target = folder / DUMP
        options = ["--format=custom", f"--schema={SCHEMA}", f"--snapshot={moment}", f"--file={target}"]
        _run("pg_dump", address, [*options, "--no-owner", "--no-privileges", "--no-password"])
        blobs = _write_names(connection, folder / NAMES)
        (versions,) = connection.execute("SELECT COUNT(*) FROM version WHERE is_marker = 0").fetchone()
        facts = Facts(key_check(connection), len(MIGRATIONS), engine_of(connection), blobs, versions)
    snapshot = PostgresSnapshot(folder)
    snapshot.write_facts(facts)
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(folder)


def load(snapshot: PostgresSnapshot, facts: Facts, address: str) -> None:
    """Put the metadata into a database that has no objects. Raises ObjectBackupError, StoreUnavailable.

    A dump is a program of the database's: the caller has made sure that it is the one that was written."""
    with alone(address) as database:
        database.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        options = ["--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges"]
        _run("pg_restore", address, [*options, "--no-password", str(snapshot.dump)])
        row = database.execute("SELECT value FROM fact WHERE name = %s", (KEY_CHECK,)).fetchone()
        if row is None or bytes(row[0]) != facts.key_check:
            database.execute(f"DROP SCHEMA {SCHEMA} CASCADE")
            raise ObjectBackupError("The dump is of another store than it says", "Restore another snapshot")


@contextmanager
def alone(address: str) -> Generator[Session]:
    """Keep object gateways from the database meanwhile. Raises ObjectBackupError where one is there, and
    where there are objects; StoreUnavailable."""
    try:
        with closing(connect(address)) as database:
            if not hold_alone(database):
                raise ObjectBackupError("The object gateway runs", "Stop the cloud first: neo down")
            is_there = database.execute("SELECT to_regclass(%s)", (f"{SCHEMA}.content",)).fetchone()
            if is_there != (None,) and database.execute("SELECT 1 FROM content LIMIT 1").fetchone():
                raise ObjectBackupError(
                    f"{named(address)} holds objects already, and a backup is never restored over them",
                    "Restore into a database without objects",
                )
            yield database
    except psycopg.Error as error:
        raise explain(error, address) from error


def key_check(connection: Connection) -> bytes:
    row = connection.execute("SELECT value FROM fact WHERE name = ?", (KEY_CHECK,)).fetchone()
    if row is None:
        raise ObjectBackupError("The metadata of the objects were never in use", "Start the cloud first")
    return bytes(row[0])


def still_named(store: Path, names: Iterable[str]) -> bool:
    """Return whether the store itself names one of these blobs."""
    with closing(open_beside(store)) as connection:
        return any(connection.execute(f"{NAMED} AND blob = ?", (name,)).fetchone() for name in names)


def _write_names(connection: Connection, path: Path) -> int:
    """Write the names of all blobs, one a line; return how many there are."""
    number, last = 0, ""
    with path.open("w") as file:
        while page := connection.execute(_PAGE, (last,)).fetchall():
            file.writelines(f"{name}\n" for (name,) in page)
            number, last = number + len(page), page[-1][0]
    return number


def _run(program: str, address: str, options: Sequence[str]) -> None:
    """Run a program of PostgreSQL's client on the database. Raises ObjectBackupError."""
    parts = conninfo_to_dict(address)
    public = make_conninfo("", **{name: value for name, value in parts.items() if name not in _SECRETS})
    password = str(parts.get("password") or "")
    with _password_file(password) as descriptor:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}
        environment = {**kept, "LC_ALL": "C.UTF-8"}
        if descriptor is not None:
            environment["PGPASSFILE"] = f"{_HIDDEN_FD}{descriptor}"
        try:
            done = subprocess.run(
                [program, *options, f"--dbname={public}"],
                env=environment,
                pass_fds=() if descriptor is None else (descriptor,),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError:
            raise ObjectBackupError(
                f"{program} is not installed, which copies metadata in PostgreSQL",
                "Install the client of the server's version, e.g. apt-get install postgresql-client",
            ) from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ObjectBackupError(f"{program} did not copy the metadata: {said[0][:500]}", _next_step(said))


def _next_step(said: Sequence[str]) -> str:
    if any("server version mismatch" in line for line in said):
        return "Install the client of the server's version"
    return f"Look at the log of the server{f' ({said[-1][:200]})' if len(said) > 1 else ''}"


@contextmanager
def _password_file(password: str) -> Generator[int | None]:
    """Open a file in memory that PGPASSFILE can name; None without a password."""
    if not password:
        yield None
        return
    escaped = password.replace("\\", "\\\\").replace(":", "\\:")
    descriptor = os.memfd_create("pgpass", os.MFD_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, f"*:*:*:*:{escaped}\n".encode())
        yield descriptor
    finally:
        os.close(descriptor)
