"""Bring a database to this release: migrate its schema, and seal secrets left in plain.

Migrations only go forward. A newer schema is never touched: an older program that writes into it could
destroy data that it does not understand.

Sealing covers the specs and statuses of kinds that can hold secrets. It runs when a store is opened, before
its first use, in bounded steps of one transaction each, and resumes on the next start if it is interrupted.
A part of a kind whose rows have all been checked is recorded and never checked again. If any row was in
plain, the database is then rewritten once, so that no free page keeps it.
"""

import logging
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, Table, bindparam, delete, insert, select, union, update

from neocloud.core.contract.annotations import secret_parts
from neocloud.core.store.protocol import StoreError
from neocloud.core.store.tables import history, resources, sealed
from neocloud.core.store.vault import FORMAT, Vault

logger = logging.getLogger(__name__)

_MIGRATIONS = Path(__file__).parent / "migrations"
ROWS_OF_A_STEP = 200
"""Rows checked in one transaction; most have some kilobytes."""

_TABLES: tuple[tuple[Table, str], ...] = ((resources, "id"), (history, "resource_id"))
_UNWIPED = {"kind": "", "part": "free pages"}
"""Recorded while free pages may still hold what was in plain."""
_IS_UNWIPED = sealed.c.kind == _UNWIPED["kind"]


def check_revision(found: str | None, where: str) -> None:
    """Raise StoreError if this release does not know the revision."""
    if found is not None and found not in _known_revisions():
        raise StoreError(
            f"{where} was made by a newer Neocloud (schema {found}). "
            "Upgrade Neocloud to use it; nothing was changed."
        )


def migrate(connection: Connection, where: str) -> None:
    """Run the missing migrations inside the connection's transaction."""
    found = MigrationContext.configure(connection).get_current_revision()
    check_revision(found, where)
    if found == _scripts().get_current_head():
        return
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    return config


@cache  # it runs the files of all migrations
def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _known_revisions() -> set[str]:
    return {script.revision for script in _scripts().walk_revisions()}


def seal_old_rows(engine: Engine, vault: Vault, wipe: Callable[[], None]) -> None:
    """Seal all rows of kinds that are not yet recorded as sealed. `wipe` rewrites the database without its
    free pages; when it raises StoreError, such as on a full disk, the next start tries it again."""
    for kind, part in list(_missing(engine)):
        for table, id_column in _TABLES:
            after: int | None = 0
            while after is not None and part in table.c:
                after = _step(engine, vault, table, id_column, kind, part, after)
        with engine.begin() as connection:
            connection.execute(insert(sealed), {"kind": kind, "part": part})
    with engine.begin() as connection:
        is_unwiped = _is_unwiped(connection)
    if not is_unwiped:
        return
    logger.info("secrets of an earlier release are sealed; rewriting the database once without them")
    try:
        wipe()
    except StoreError as error:
        logger.warning("free pages of the database may still hold secrets in plain: %s", error)
        return
    with engine.begin() as connection:
        connection.execute(delete(sealed).where(_IS_UNWIPED))


def _is_unwiped(connection: Connection) -> bool:
    return connection.execute(select(sealed).where(_IS_UNWIPED)).first() is not None


def _missing(engine: Engine) -> Iterator[tuple[str, str]]:
    with engine.begin() as connection:
        kinds = connection.execute(union(select(resources.c.kind), select(history.c.kind))).scalars().all()
        known = {(row.kind, row.part) for row in connection.execute(select(sealed))}
    for kind in sorted(kinds):
        yield from ((kind, part) for part in sorted(secret_parts(kind)) if (kind, part) not in known)


def _step(
    engine: Engine, vault: Vault, table: Table, id_column: str, kind: str, part: str, after: int
) -> int | None:
    """Seal the next rows and return the number of the last one, None if there were no more."""
    value = table.c[part]
    rows_after = (
        select(table.c.seq, table.c[id_column], value)
        .where(table.c.kind == kind, table.c.seq > after)
        .order_by(table.c.seq)
        .limit(ROWS_OF_A_STEP)
    )
    write = (
        update(table)
        .where(table.c.seq == bindparam("row"), value == bindparam("plain"))
        .values({part: bindparam("sealed_value")})
    )
    with engine.begin() as connection:
        rows = connection.execute(rows_after).all()
        if any(_is_plain(plain) for *_, plain in rows) and not _is_unwiped(connection):
            connection.execute(insert(sealed), _UNWIPED)
        for seq, resource_id, plain in rows:
            if _is_plain(plain):
                closed = vault.seal_part(kind, resource_id, part, plain)
                connection.execute(write, {"row": seq, "plain": plain, "sealed_value": closed})
    return rows[-1].seq if rows else None


def _is_plain(value: bytes) -> bool:
    return bool(value) and value[:1] != FORMAT
