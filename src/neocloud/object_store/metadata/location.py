"""The location of a store's metadata: a file in its folder, or PostgreSQL. They are not moved.

The address of a database may have a password. It is in a file of the operator's, whose path is noted in the
folder, so that other processes find the metadata, too.
"""

import json
import logging
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from shlex import quote

from neocloud.core import contract
from neocloud.core.osfiles import read_private, write_file
from neocloud.object_store.errors import StoreUnavailable
from neocloud.object_store.metadata.connection import Connection, Metadata
from neocloud.object_store.metadata.sqlite import SqliteMetadata, open_to_read

logger = logging.getLogger(__name__)
FILE = "meta.db"
MARK = "metadata.json"
"""Where the metadata are, if they are not in the folder."""
MOST_ADDRESS_BYTES = 4096


def open_metadata(home: Path, address_file: Path | None, *, is_alone: bool = True) -> Metadata:
    """Open what the gateway writes. Raises StoreUnavailable, also where they are elsewhere; OSError."""
    if problem := problem_with(home, address_file):
        raise StoreUnavailable(problem)
    if address_file is None:
        return SqliteMetadata(home / FILE)
    from neocloud.object_store.metadata.postgres import PostgresMetadata  # noqa: PLC0415  it takes a while

    found = PostgresMetadata(read_address(address_file), is_alone=is_alone)
    note_address(home, address_file)
    return found


def problem_with(home: Path, address_file: Path | None) -> str:
    """Return why the store in a folder cannot be opened with this file; "": nothing is known against it."""
    if address_file is None and (home / MARK).exists():
        where = json.loads((home / MARK).read_text())
        return (
            f"The metadata of the objects are in {where['database']}, and are not moved. Name them"
            f" again: `neo config set object-metadata {quote(where['address_file'])}`."
        )
    if address_file is not None and (home / FILE).exists():
        return (
            f"The metadata of the objects are in {home / FILE}, and are not moved. Use them again:"
            " `neo config unset object-metadata`; or copy the objects to another cloud with a transfer."
        )
    return ""


def is_there(home: Path) -> bool:
    """Return whether a folder has a store."""
    return (home / FILE).exists() or (home / MARK).exists()


def is_in_postgresql(home: Path) -> bool:
    return (home / MARK).exists()


def read_address(file: Path) -> str:
    """Return the address in a file. Raises StoreUnavailable."""
    try:
        address = read_private(file, MOST_ADDRESS_BYTES).strip()
    except ValueError as error:
        raise StoreUnavailable(f"The address of the metadata: {error}.") from error
    except OSError as error:
        raise StoreUnavailable(f"{file} cannot be read: {error.strerror}.") from error
    if not address.startswith(("postgresql://", "postgres://")) or not address.isprintable():
        raise StoreUnavailable(f"{file} does not hold an address such as postgresql://USER@HOST/DATABASE.")
    if address.count("@") > 1:  # else the driver takes a part of the password for the host, and says so
        raise StoreUnavailable(f"{file} has more than one @. Write one in a password as %40.")
    return address


def open_beside(home: Path) -> Connection:
    """Return a connection for another process than the gateway, which writes nothing. Raises StoreUnavailable
    where another release wrote the metadata, and where they cannot be read."""
    if not is_in_postgresql(home):
        return open_to_read(home / FILE)
    from neocloud.object_store.metadata.postgres import open_reading  # noqa: PLC0415

    return open_reading(noted_address(home))


@contextmanager
def reading(home: Path, table: str) -> Generator[Connection | None]:
    """Yield a connection of another process that reads one state of the metadata; None where there is no
    such table yet. Raises ApiError (UNAVAILABLE) where they are in PostgreSQL, which is away."""
    if is_in_postgresql(home):
        from neocloud.object_store.metadata.postgres import open_reading  # noqa: PLC0415

        try:
            with closing(open_reading(noted_address(home))) as connection:
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                yield connection
        except StoreUnavailable as error:
            logger.warning("The metadata of objects cannot be read: %s", error)
            text = "The object store cannot be read now. Try again later."
            raise contract.unavailable(text) from error
        return
    path = home / FILE
    if not path.exists():
        yield None
        return
    address = f"{path.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, timeout=5, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        found = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,))
        yield connection if found.fetchone() else None


def note_address(home: Path, address_file: Path) -> None:
    """Note where the metadata of a store are from now on. Raises StoreUnavailable."""
    from neocloud.object_store.metadata.postgres import named  # noqa: PLC0415  it takes a while

    mark = {"database": named(read_address(address_file)), "address_file": str(address_file)}
    write_file(home / MARK, json.dumps(mark) + "\n", durable=True)


def noted_address(home: Path) -> str:
    """Return the address that a store in PostgreSQL was opened with. Raises StoreUnavailable."""
    return read_address(Path(json.loads((home / MARK).read_text())["address_file"]))
