"""Write a backup of a cloud while it runs.

Databases are copied by SQLite, in one read transaction each, so that writers continue. The copy lies in the
state folder, which is closed to others and holds the same in plain already.
"""

import hashlib
import json
import os
import sqlite3
import stat
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import neocloud
from neocloud.control_plane.backup.archive import BackupError, PackedFiles
from neocloud.control_plane.backup.contents import (
    DATABASES,
    FILES,
    FORMAT,
    LEDGER,
    MANIFEST,
    REQUIRED,
    STATE,
    Content,
    Manifest,
    manifest_text,
)
from neocloud.control_plane.backup.keys import HEADER_BYTES, Lock, encrypted_size, is_age_file
from neocloud.control_plane.backup.staging import (
    Show,
    Stream,
    confirm,
    draft_of,
    errors_of,
    first_error_of,
    free_bytes,
    opened,
    private_folder,
    put_in_place,
)
from neocloud.control_plane.settings_file import CONFIG_FILE, EARLIER_FILE, WORLD_FILE
from neocloud.core.osfiles import write_file
from neocloud.core.sqlite_file import copy_file
from neocloud.settings.settings import Settings

SPARE_BYTES = 64 * 1024**2
"""Space that a backup leaves free on the disk of a running cloud."""


def write_backup(
    settings: Settings, target: Path, lock: Lock, show: Show, *, replace: bool = False
) -> Manifest:
    """Write a backup of a cloud, running or not. The caller holds the folder's lock against other commands.

    Nothing is left at the target or in the home when this fails. Raises BackupError.
    """
    check_places(settings, target, replace=replace)
    made_at = datetime.now(UTC)  # what was committed before is in it
    what = "the copy of the state"
    with private_folder(settings.home, what) as copy, errors_of(settings.home, what):
        names = [*_copy_databases(settings.home, copy, show), *_copy_files(settings.home, copy)]
        manifest = _describe(settings, made_at, copy, names)
        write_file(copy / MANIFEST, manifest_text(manifest))
        show("encrypting")
        with errors_of(target.parent, "the backup"):
            _encrypt(copy, [MANIFEST, *names], lock, target, replace)
    return manifest


def check_places(settings: Settings, target: Path, *, replace: bool) -> None:
    """Refuse a cloud that cannot be backed up, and a target that cannot be written. Raises BackupError."""
    with errors_of(settings.home, "the backup"):
        _check_source(settings)
    with errors_of(target.parent, "the backup"):
        _check_target(settings.home, target, replace)


def _check_source(settings: Settings) -> None:
    if settings.database_url or settings.database_url_file:
        raise BackupError(
            "The database of this cloud is PostgreSQL, which this command does not back up",
            "Back up the database with `pg_dump --format=custom`, and beside it these files in"
            f" {settings.home}: {', '.join(FILES)} and {LEDGER}. Without store.key, its secrets are lost",
        )
    missing = [name for name in REQUIRED if not (settings.home / name).is_file()]
    if missing:
        raise BackupError(
            f"There is no cloud to back up in {settings.home} ({missing[0]} is missing)",
            "Name the state folder with --home",
        )


def _check_target(home: Path, target: Path, replace: bool) -> None:
    if target.parent.resolve().is_relative_to(home.resolve()):
        raise BackupError(
            f"{target} lies in the state folder, which `neo destroy` removes", "Write the backup elsewhere"
        )
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(target.lstat().st_mode):
            raise BackupError(f"{target} is not a regular file", "Name another file")
        if not replace:
            raise _exists(target)
        if not is_age_file(target):
            raise BackupError(
                f"{target} is not a backup, and --force replaces nothing else", "Name another file"
            )


def _exists(target: Path) -> BackupError:
    return BackupError(
        f"{target} exists already", "Name another file, or replace it with --force", is_conflict=True
    )


def _copy_databases(home: Path, copy: Path, show: Show) -> list[str]:
    (copy / LEDGER).parent.mkdir(mode=0o700)
    found = [name for name in DATABASES if (home / name).is_file()]
    sizes = {name: sum(_size_of(home / f"{name}{end}") for end in ("", "-wal")) for name in found}
    needed, free = sum(sizes.values()) + SPARE_BYTES, free_bytes(copy)
    if free < needed:
        raise BackupError(
            f"The disk of {home} has {free:,} bytes free, and the backup needs up to {needed:,} there for a"
            " copy of the databases. Nothing was written",
            "Free some space",
        )
    for name in found:
        show(f"copying {name}, {sizes[name] / 1024**2:,.0f} MiB")
        (copy / name).touch(mode=0o600)  # SQLite would take the umask
        with errors_of(home, "the copy of the databases"):
            _copy_database(home / name, copy / name)
    return found


def _copy_database(source: Path, target: Path) -> None:
    try:
        copy_file(source, target)
    except sqlite3.Error as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_FULL:
            raise BackupError(
                f"No space is left on the disk of {target.parent} for a copy of {source.name}. Nothing was"
                " written",
                "Free some space",
            ) from None
        raise BackupError(
            f"{source} cannot be copied: {error}", "Look at the disk and at `neo logs`"
        ) from None


def _copy_files(home: Path, copy: Path) -> list[str]:
    found: list[str] = []
    for name in FILES:
        with suppress(FileNotFoundError, NotADirectoryError):
            content = (home / name).read_bytes()
            (copy / name).parent.mkdir(mode=0o700, exist_ok=True)
            with errors_of(home, "the copy of the state"):
                write_file(copy / name, content)
            found.append(name)
    if CONFIG_FILE not in found and EARLIER_FILE not in found:  # a server that `neo up` did not start
        write_file(copy / CONFIG_FILE, json.dumps({"emulator": True} if (home / WORLD_FILE).exists() else {}))
        found.append(CONFIG_FILE)
    return found


def _describe(settings: Settings, made_at: datetime, copy: Path, names: list[str]) -> Manifest:
    with closing(opened(copy / STATE)) as connection:
        resources = dict(
            connection.execute("SELECT kind, count(*) FROM resources GROUP BY kind ORDER BY kind")
        )
        (schema,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    outside = (
        *(settings.price_file, settings.quota_file, settings.tls_certificate, settings.tls_key),
        *settings.model_folders,
    )
    return Manifest(
        format=FORMAT,
        release=neocloud.__version__,
        schema=schema,
        made_at=made_at.isoformat(timespec="seconds"),
        home=str(settings.home),
        resources=resources,
        files={name: Content(_size_of(copy / name), _sha256(copy / name)) for name in names},
        outside=tuple(str(path) for path in outside if path is not None),
    )


def _encrypt(copy: Path, names: list[str], lock: Lock, target: Path, replace: bool) -> None:
    archive = PackedFiles(copy, names)
    with draft_of(target) as (draft, file):
        stream = Stream(file)
        with first_error_of(archive, stream):
            lock.encrypt(archive, stream)
            stream.flush()
        os.fsync(file.fileno())
        _check_whole(draft, archive.size)
        try:
            if replace:
                draft.replace(target)
            else:
                put_in_place(draft, target)  # another file may have come meanwhile
        except FileExistsError:
            raise _exists(target) from None
    confirm(target.parent, f"{target} was written")


def _check_whole(draft: Path, size: int) -> None:
    """Check that a file was encrypted whole: the encryption ignores errors of its last write, also an
    interruption before it.
    """
    with draft.open("rb") as file:
        head = file.read(HEADER_BYTES)
    if b"\n--- " not in head or _size_of(draft) != encrypted_size(head, size):
        raise BackupError("The backup was not written whole. Nothing was changed", "Try again")


def _size_of(path: Path) -> int:
    """Return 0 for a file that is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
