"""Seals what an earlier release wrote in plain: specs and statuses of kinds that can hold secrets.

Runs when a store is opened, before anybody uses it. It works in bounded steps, each one a transaction of its
own, and may be interrupted at any of them: the next start goes on. A part of a kind whose rows were all
looked through is noted and never looked at again. Where a row was in plain, the database is then written anew
once, so that nothing of it stays in free pages.
"""

import logging
from collections.abc import Callable, Iterator

from sqlalchemy import Connection, Engine, Table, bindparam, delete, insert, select, union, update

from neocloud.core.contract.secrets import secret_parts
from neocloud.core.store.protocol import StoreError
from neocloud.core.store.tables import history, resources, sealed
from neocloud.core.store.vault import FORMAT, Vault

ROWS_OF_A_STEP = 200
"""Rows that are looked at in one transaction; most have some kilobytes."""

_TABLES: tuple[tuple[Table, str], ...] = ((resources, "id"), (history, "resource_id"))
_UNWIPED = {"kind": "", "part": "free pages"}
"""Noted while free pages may still hold what was in plain."""
_IS_UNWIPED = sealed.c.kind == _UNWIPED["kind"]
_LOG = logging.getLogger(__name__)


def seal_old_rows(engine: Engine, vault: Vault, wipe: Callable[[], None]) -> None:
    """Seal all rows of kinds that have not been noted as sealed. `wipe` rewrites the database without its
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
    _LOG.info("secrets of an earlier release are sealed; rewriting the database once without them")
    try:
        wipe()
    except StoreError as error:
        _LOG.warning("free pages of the database may still hold secrets in plain: %s", error)
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
    """Seal the next rows; the last one's number, None after the last."""
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
