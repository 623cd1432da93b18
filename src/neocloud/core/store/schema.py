"""Brings a database to this release's schema, and refuses one that a newer release has made.

Migrations only go forward. A newer schema is never touched: an older program that writes into it could
destroy what it does not understand.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from neocloud.core.store.protocol import StoreError

_MIGRATIONS = Path(__file__).parent / "migrations"


def check_revision(found: str | None, where: str) -> None:
    """Raises StoreError when this release does not know the revision."""
    if found is not None and found not in _known_revisions():
        raise StoreError(
            f"{where} was made by a newer Neocloud (schema {found}). "
            "Upgrade Neocloud to use it; nothing was changed."
        )


def upgrade(connection: Connection, where: str) -> None:
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


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _known_revisions() -> set[str]:
    return {script.revision for script in _scripts().walk_revisions()}
