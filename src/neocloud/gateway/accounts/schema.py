"""The tables of the ledger, and the steps from one version of them to the next.

`requests` has a row for each request, from its reservation on. Rows that are old become sums in `hours`.
Prices are those that requests were admitted at, in 1e-14 dollars a token; NO_PRICE where there was none.
Times are milliseconds since 1970.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from neocloud.gateway_key import gateway_folder

NO_PRICE = -1
HOUR_MS = 3_600_000


def ledger_file(home: Path) -> Path:
    return gateway_folder(home) / "ledger.db"


class LedgerError(Exception):
    """The ledger cannot be used; the message says why and what to do."""


MIGRATIONS = (
    """
    CREATE TABLE requests (
        request_id TEXT NOT NULL UNIQUE,
        tenant_id TEXT NOT NULL,
        project_id TEXT NOT NULL,
        subject_id TEXT NOT NULL,
        deployment_id TEXT NOT NULL,
        model_name TEXT NOT NULL,
        input_price INTEGER NOT NULL,
        cached_input_price INTEGER NOT NULL,
        output_price INTEGER NOT NULL,
        estimated_input INTEGER NOT NULL,
        max_output INTEGER NOT NULL,
        started_at INTEGER NOT NULL,
        ended_at INTEGER,
        input INTEGER,
        cached_input INTEGER,
        output INTEGER,
        outcome TEXT,
        is_estimated INTEGER
    );
    CREATE INDEX requests_by_end ON requests (ended_at) WHERE ended_at IS NOT NULL;
    CREATE INDEX requests_open ON requests (started_at) WHERE ended_at IS NULL;

    CREATE TABLE hours (
        hour INTEGER NOT NULL,
        tenant_id TEXT NOT NULL,
        project_id TEXT NOT NULL,
        subject_id TEXT NOT NULL,
        deployment_id TEXT NOT NULL,
        model_name TEXT NOT NULL,
        input_price INTEGER NOT NULL,
        cached_input_price INTEGER NOT NULL,
        output_price INTEGER NOT NULL,
        requests INTEGER NOT NULL,
        estimated_requests INTEGER NOT NULL,
        input INTEGER NOT NULL,
        cached_input INTEGER NOT NULL,
        output INTEGER NOT NULL,
        PRIMARY KEY (
            hour, project_id, subject_id, deployment_id, model_name, input_price, cached_input_price,
            output_price
        )
    ) WITHOUT ROWID;

    CREATE TABLE spent (
        project_id TEXT NOT NULL,
        month TEXT NOT NULL,
        amount TEXT NOT NULL,
        PRIMARY KEY (project_id, month)
    ) WITHOUT ROWID;

    CREATE TABLE last_requests (
        deployment_id TEXT NOT NULL PRIMARY KEY,
        at INTEGER NOT NULL
    ) WITHOUT ROWID;
    """,
)
"""From the version of its index to the next. `spent.amount`: 1e-14 dollars as text: beyond 64 bits."""


def connect(path: Path) -> sqlite3.Connection:
    """The one connection that writes. What was committed survives a power cut."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def upgrade(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise LedgerError(
            f"{path} was written by a newer release (schema version {version}; this release supports up to"
            f" {len(MIGRATIONS)}). Start that release, or restore a backup."
        )
    for number, script in enumerate(MIGRATIONS[version:], version + 1):
        connection.executescript(f"BEGIN IMMEDIATE;{script};PRAGMA user_version = {number};COMMIT;")


def check(path: Path) -> None:
    """Raises LedgerError for a file that is no ledger."""
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        raise LedgerError(
            f"{path} is not a ledger or is damaged: {error}. Move it away to start with a new ledger; usage"
            " recorded in the old file is then not billed."
        ) from error
