# pyright: strict
"""Where the metadata of a store are: in a file in its folder, or in PostgreSQL. They are not moved."""

from pathlib import Path

from neocloud.objects.errors import StoreUnavailable
from neocloud.objects.metadata.connection import Metadata
from neocloud.objects.metadata.sqlite import SqliteMetadata

FILE = "meta.db"
_MARK = "metadata-in-postgresql"
"""A file that says that they are not in the folder."""


def open_metadata(home: Path, address: str, *, is_shared: bool) -> Metadata:
    """Raises StoreUnavailable, also where they are elsewhere; OSError."""
    mark = home / _MARK
    if not address:
        if mark.exists():
            raise StoreUnavailable(
                f"The metadata of the object store are in {mark.read_text().strip()}, and are not moved. Start"
                " with its address."
            )
        return SqliteMetadata(home / FILE)
    if (home / FILE).exists():
        raise StoreUnavailable(
            f"The metadata of the object store are in {home / FILE}, and are not moved to PostgreSQL. Start"
            " without an address of a database; or copy the objects to another cloud with a transfer."
        )
    # Here, since its driver takes long to import.
    from neocloud.objects.metadata.postgres import PostgresMetadata, named

    found = PostgresMetadata(address, is_shared=is_shared)
    mark.write_text(f"{named(address)}\n")
    return found
