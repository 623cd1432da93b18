"""Restore a backup into an empty state folder, or check one.

A backup is hostile input: only the names of `contents` are taken from it, and the state folder is changed by
one rename, after everything has been checked. The restored state brings the lock of the folder, which is held
until all of it is there: of several commands, `neo up` among them, one makes the cloud.
"""

import errno
import hashlib
import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import neocloud
from neocloud.control_plane.backup.archive import BackupError, Packed, open_regular, unpack
from neocloud.control_plane.backup.contents import (
    DATABASES,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    PUBLIC_FILES,
    STATE,
    Content,
    Manifest,
    read_manifest,
    too_new,
    unusable,
)
from neocloud.control_plane.backup.keys import Lock
from neocloud.control_plane.backup.staging import (
    PREFIX,
    Show,
    Stream,
    confirm,
    errors_of,
    first_error_of,
    free_bytes,
    opened,
    private_folder,
    put_in_place,
    was_put,
)
from neocloud.control_plane.settings_file import CONFIG_FILE, EARLIER_FILE, LOCK_FILE
from neocloud.core.cleanup import undo_on_error
from neocloud.core.osfiles import Locked, locked, sync_folder
from neocloud.core.untrusted.files import remove_tree

_MAX_ROW_BYTES = 1024**2
_MAX_STEPS = 1_000_000
"""Steps of SQLite for the one row that holds the schema, which takes a dozen."""
_VERSIONS = Path(neocloud.__file__).parent / "core" / "store" / "migrations" / "versions"


def check_backup(source: Path, lock: Lock, show: Show) -> Manifest:
    """Read a backup whole and check everything, in a temporary folder. Raises BackupError."""
    with private_folder(Path(tempfile.gettempdir()), "the check") as folder:
        return _unpacked(source, lock, folder, folder.parent, show)


def restore_backup(source: Path, lock: Lock, home: Path, show: Show) -> Manifest:
    """Restore a backup into a state folder that is empty or not there yet.

    The folder appears whole or not at all. Raises BackupError.
    """
    home = home.resolve()
    _refuse_used(home)
    with errors_of(home, "the state folder"):
        home.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        is_mount = home.is_mount()
    with private_folder(home if is_mount else home.parent, "the restored state") as folder:
        state = folder / "state"
        state.mkdir(mode=0o700)
        manifest = _unpacked(source, lock, state, folder.parent, show)
        with errors_of(home, "the state folder"), locked(state / LOCK_FILE):
            _remove_unused_lock(home)
            (_move_into if is_mount else _move_to)(state, home)
    confirm(home if is_mount else home.parent, f"{home} was written")
    return manifest


# Reading


def _unpacked(source: Path, lock: Lock, folder: Path, parent: Path, show: Show) -> Manifest:
    """Decrypt and unpack into a folder, and check all of it."""
    with open_regular(source) as file, errors_of(parent, "the restored state"):
        with tempfile.TemporaryFile(dir=folder) as archive:
            show("decrypting")
            backup, plain = Stream(file), Stream(archive)
            with first_error_of(backup, plain):
                lock.decrypt(backup, plain)
                plain.flush()
            archive.seek(0)
            show("unpacking")
            manifest = _unpack_files(archive, folder)
        show("checking the databases")
        for name in DATABASES:
            if name in manifest.files:
                _check_database(folder / name)
        _check_schema(manifest, folder / STATE)
        for path in (folder, *folder.iterdir()):
            if path.is_dir():
                sync_folder(path)
    return manifest


def _unpack_files(archive: BinaryIO, folder: Path) -> Manifest:
    manifest: Manifest | None = None
    missing: set[str] = set()
    for packed in unpack(archive):
        if manifest is None:
            manifest = _read_manifest(packed)
            missing = set(manifest.files)
            if manifest.size > free_bytes(folder):
                raise OSError(errno.ENOSPC, "", str(folder))
        elif packed.name in missing:
            missing.remove(packed.name)
            _write(packed, manifest.files[packed.name], folder / packed.name)
        else:
            raise unusable(f"{packed.name!r} in it is not in its list of files, or is there twice")
    if manifest is None or missing:
        raise unusable(f"{min(missing) if missing else MANIFEST} is missing")
    return manifest


def _read_manifest(packed: Packed) -> Manifest:
    if packed.name != MANIFEST or packed.size > MAX_MANIFEST_BYTES:
        raise unusable("it does not begin with its list of files")
    return read_manifest(b"".join(packed.chunks))


def _write(packed: Packed, expected: Content, path: Path) -> None:
    if packed.size != expected.size:
        raise unusable(f"{packed.name} in it has another size than its list of files says")
    path.parent.mkdir(mode=0o700, exist_ok=True)
    digest = hashlib.sha256()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        os.fchmod(file.fileno(), PUBLIC_FILES.get(packed.name, 0o600))
        for chunk in packed.chunks:
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != expected.sha256:
        raise unusable(f"{packed.name} in it is not what its list of files says")


def _check_database(path: Path) -> None:
    try:
        with closing(opened(path)) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            found = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        raise unusable(f"{path.name} in it cannot be read ({error})") from None
    if found != ("ok",):
        raise unusable(f"{path.name} in it is damaged")


_FIND_REVISIONS = (
    "SELECT 1 FROM sqlite_master WHERE name = 'alembic_version' AND type = 'table' AND rootpage > 0"
)


def _check_schema(manifest: Manifest, database: Path) -> None:
    """Refuse a backup whose database has another schema than its manifest says."""
    try:
        with closing(opened(database)) as connection:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_ROW_BYTES)
            connection.set_progress_handler(lambda: True, _MAX_STEPS)  # it ends a query that takes more
            connection.execute("PRAGMA trusted_schema = OFF")
            if connection.execute(_FIND_REVISIONS).fetchone() is None:  # a view may have no end
                raise unusable(f"{STATE} in it is not the database of a cloud")
            found = connection.execute("SELECT version_num FROM alembic_version").fetchmany(2)
    except sqlite3.Error:
        raise unusable(f"{STATE} in it is not the database of a cloud") from None
    if found != [(manifest.schema,)]:
        raise unusable(f"the schema of {STATE} in it is not what its list of files says")
    if manifest.schema not in known_schemas():
        raise too_new(manifest)


def known_schemas() -> set[str]:
    """Return the revisions of the database that this release can bring to its own, by their files."""
    return {file.name.partition("_")[0] for file in _VERSIONS.glob("[0-9]*_*.py")}


# Writing


def _refuse_used(home: Path) -> None:
    try:
        found = sorted(path.name for path in home.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise BackupError(
            f"{home} cannot be used: {error.strerror}", "Name another folder with --home"
        ) from None
    if STATE in found or CONFIG_FILE in found or EARLIER_FILE in found:
        raise BackupError(
            f"{home} holds a cloud already, and a backup is never restored over one. Nothing was changed",
            "Name an empty or a new folder with --home, or remove that cloud first with `neo destroy`",
        )
    ignored = ("lost+found", LOCK_FILE)
    left = [name for name in found if name not in ignored and not name.startswith(PREFIX)]
    if left:
        raise _has_others(home, left[0])


def _remove_unused_lock(home: Path) -> None:
    """Remove a lock that a command which was killed has left. Raises BackupError when one holds it."""
    path = home / LOCK_FILE
    try:
        if path.exists():
            with locked(path):
                _refuse_used(home)
                path.unlink()
    except Locked:
        raise _is_busy(home) from None


def _is_busy(home: Path) -> BackupError:
    return BackupError(
        f"Another `neo` is working on {home}. Nothing was changed",
        "Wait for it, or name another folder with --home",
    )


def _has_others(home: Path, name: str) -> BackupError:
    if name == LOCK_FILE:
        return _is_busy(home)
    return BackupError(
        f"{home} holds other files ({name}). Nothing was changed", "Name an empty or a new folder with --home"
    )


def _move_to(state: Path, home: Path) -> None:
    """In one step, in place of an empty folder; fails when something came into it meanwhile."""
    try:
        os.rename(state, home)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            _refuse_used(home)
            if (home / LOCK_FILE).exists():
                raise _is_busy(home) from None
        raise


def _move_into(state: Path, home: Path) -> None:
    """Move the files into a folder that is a disk of its own. Moved files are removed if one fails."""
    _refuse_used(home)
    marks = {LOCK_FILE: -1, CONFIG_FILE: 1, EARLIER_FILE: 1}
    paths = sorted(state.iterdir(), key=lambda path: marks.get(path.name, 0))

    def remove() -> None:
        for path in paths:
            if was_put(path, home / path.name):
                remove_tree(home / path.name)

    try:
        with undo_on_error(remove):
            for path in paths:
                put_in_place(path, home / path.name)
            home.chmod(0o700)
    except FileExistsError as error:  # it came meanwhile
        raise _has_others(home, Path(error.filename2 or error.filename).name) from None
