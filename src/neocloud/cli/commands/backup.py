"""`neo backup` and `neo restore`: the state of a cloud in one encrypted file, and back."""

import os
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.machine.home import Home, no_cloud_in
from neocloud.cli.machine.server_process import is_supervised
from neocloud.cli.output import Format, JsonObject, OutputOption, fields_table, say, show, size_text
from neocloud.cli.progress import stage
from neocloud.cli.signals import stopped_by_signals
from neocloud.cli.target import HomeOption, home_of
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.control_plane.backup.archive import BackupError, open_regular
from neocloud.control_plane.backup.contents import NOT_HELD, Manifest
from neocloud.control_plane.backup.keys import Lock, Passphrase, needs_passphrase, new_key, read_keys
from neocloud.control_plane.backup.restore import check_backup, restore_backup
from neocloud.control_plane.backup.write import check_places, write_backup
from neocloud.core.osfiles import create_file

VARIABLE = "NEOCLOUD_BACKUP_PASSPHRASE"
SHORTEST_PASSPHRASE = 12

backup_app = command_group()
restore_app = command_group()

KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        metavar="KEYS",
        help="File of age keys. To back up, public keys do (age1...); to restore, a secret key is needed.",
    ),
]
PassphraseFileOption = Annotated[
    Path | None,
    typer.Option(
        metavar="PASSPHRASE",
        help=f"File of mode 0600 whose first line is the passphrase. Default: the variable {VARIABLE}, or a"
        " question on the terminal.",
    ),
]


@backup_app.command()
def backup(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="File to write.", metavar="FILE")],
    home: HomeOption = None,
    key_file: KeyFileOption = None,
    new_key_file: Annotated[
        bool, typer.Option("--new-key", help="Make the file of --key-file, which must not exist yet.")
    ] = False,
    passphrase_file: PassphraseFileOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Back up the state of the cloud into one encrypted file, while it runs.

    Holds the database, the usage of tokens, settings, certificates and keys. Does not hold the data of
    workloads: volumes, images, models, uploaded files. The file is in the age format; without its key or
    passphrase it cannot be opened, so keep them elsewhere.

    Examples:

      neo backup /mnt/backups/cloud.age --key-file /root/backup.key --new-key
      neo backup /mnt/backups/cloud.age --key-file /root/backup.key --force
      neo backup cloud.age                         # asks for a passphrase
    """
    os.umask(0o077)
    place = Home(home_of(context, home))
    target = file.absolute()
    with _told(), stopped_by_signals():
        if not place.is_ours():
            raise no_cloud_in(place.path)
        _refuse_while_it_starts(place)
        check_places(place.settings(), target, replace=force)
        if key_file is not None:
            _check_key_place(key_file.absolute(), target, place.path)
        lock = _lock_for_backup(key_file, passphrase_file, new_key_file)
        with (
            place.locked(
                lambda: say(f"Another neo is working on {place.path}; waiting for it."), may_create=False
            ),
            stage("Back up the state") as show_detail,
        ):
            manifest = write_backup(place.settings(), target, lock, show_detail, replace=force)
        size = target.stat().st_size
    show(
        output,
        {"file": str(target), "size_bytes": size, **_document(manifest)},
        fields_table([("Backup", target), ("Size", size_text(size)), *_rows(manifest)]),
    )


@restore_app.command()
def restore(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="File that `neo backup` has written.", metavar="FILE")],
    home: Annotated[
        Path | None,
        typer.Option(envvar="NEOCLOUD_HOME", help="State folder: empty, or not there yet."),
    ] = None,
    key_file: KeyFileOption = None,
    passphrase_file: PassphraseFileOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Read and check the whole file, and restore nothing.")
    ] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Restore the state of a cloud from a backup, into a state folder without a cloud.

    The file is checked whole before anything is written; a failure leaves the state folder as it was. `neo
    up` starts the restored cloud, which creates its workloads again; their data is not in the backup.

    Examples:

      neo restore /mnt/backups/cloud.age --key-file /root/backup.key
      neo restore cloud.age --home /srv/cloud
      neo restore cloud.age --check
    """
    os.umask(0o077)
    source = file.absolute()
    place = Home(home_of(context, home))
    with _told(), stopped_by_signals():
        lock = _lock_of(source, key_file, passphrase_file)
        with stage("Check the backup" if check else "Restore the state") as show_detail:
            if check:
                manifest = check_backup(source, lock, show_detail)
            else:
                manifest = restore_backup(source, lock, place.path, show_detail)
    where = {} if check else {"state": str(place.path)}
    rows = [] if check else [("State", place.path)]
    show(
        output,
        {"file": str(source), **where, **_document(manifest)},
        fields_table([("Backup", source), *rows, *_rows(manifest)]),
    )
    if output is Format.TABLE:
        is_default = place.path == Home(home_of(context)).path
        option = "" if is_default else f" --home {quote(str(place.path))}"
        echo("The backup can be restored." if check else f"Start the cloud with `neo up{option}`.")


def _document(manifest: Manifest) -> JsonObject:
    return {
        "made_at": manifest.made_at,
        "release": manifest.release,
        "schema": manifest.schema,
        "home": manifest.home,
        "resources": dict(manifest.resources),
        "files": {name: each.size for name, each in manifest.files.items()},
        "not_included": [*NOT_HELD, *manifest.outside],
    }


def _rows(manifest: Manifest) -> Iterator[tuple[str, object]]:
    yield "Made", f"{manifest.made_at} by Neocloud {manifest.release}, of {manifest.home}"
    yield "Resources", f"{sum(manifest.resources.values()):,}"
    for kind, number in manifest.resources.items():
        yield f"  {kind}", f"{number:,}"
    yield "Not in it", NOT_HELD[0]
    for each in (*NOT_HELD[1:], *manifest.outside):
        yield "", each


def _refuse_while_it_starts(place: Home) -> None:
    """Refuse a cloud that has not been ready yet, and that a command or a supervisor is starting."""
    if not place.was_started() and (place.is_locked() or is_supervised(place)):
        raise ClientError(
            "UNAVAILABLE",
            f"The cloud in {place.path} is starting for the first time, so there is nothing to back up yet",
            "Repeat this command when `neo up` has ended",
        )


# Keys and passphrases


def _lock_for_backup(key_file: Path | None, passphrase_file: Path | None, is_new: bool) -> Lock:
    _refuse_both(key_file, passphrase_file)
    if is_new:
        if key_file is None:
            raise ClientError("INVALID_ARGUMENT", "--new-key makes the file of --key-file", "Add --key-file")
        _make_key_file(key_file.absolute())
    if key_file is not None:
        return read_keys(key_file)
    passphrase = _passphrase(passphrase_file, is_new=True)
    if len(passphrase) < SHORTEST_PASSPHRASE:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"The passphrase has {len(passphrase)} characters, and {SHORTEST_PASSPHRASE} are the fewest",
            "Use a longer one, or a key: --key-file FILE --new-key",
        )
    return Passphrase(passphrase)


def _lock_of(source: Path, key_file: Path | None, passphrase_file: Path | None) -> Lock:
    """Return what opens this backup; its header says which of the two that is."""
    _refuse_both(key_file, passphrase_file)
    with open_regular(source) as file:
        is_passphrase = needs_passphrase(file)
    if not is_passphrase:
        if key_file is None:
            raise ClientError(
                "INVALID_ARGUMENT",
                "This backup was made with a key",
                "Name the file of the key with --key-file",
            )
        return read_keys(key_file)
    if key_file is not None:
        raise ClientError("INVALID_ARGUMENT", "This backup was made with a passphrase", "Drop --key-file")
    return Passphrase(_passphrase(passphrase_file, is_new=False))


def _refuse_both(key_file: Path | None, passphrase_file: Path | None) -> None:
    if key_file is not None and passphrase_file is not None:
        raise ClientError(
            "INVALID_ARGUMENT", "--key-file cannot be combined with --passphrase-file", "Drop one"
        )


def _check_key_place(key_file: Path, target: Path, home: Path) -> None:
    """Refuse a key file that the backup would replace, or that `neo destroy` would remove."""
    is_same = key_file.resolve() == target.resolve() or (
        target.exists() and key_file.exists() and target.samefile(key_file)
    )
    if is_same:
        raise ClientError("INVALID_ARGUMENT", "The key file and the backup are one file", "Name two files")
    if key_file.resolve().is_relative_to(home.resolve()):
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{key_file} lies in the state folder, which `neo destroy` removes",
            "Keep the key elsewhere",
        )


def _make_key_file(path: Path) -> None:
    if os.path.lexists(path):
        raise ClientError("ALREADY_EXISTS", f"{path} exists already", "Drop --new-key to use it")
    content = new_key()
    try:
        create_file(path, content)
        if path.read_text(errors="replace") != content:
            raise ClientError("ALREADY_EXISTS", f"{path} exists already", "Drop --new-key to use it")
    except OSError as error:
        raise ClientError(
            "FAILED_PRECONDITION", f"The key file {path} cannot be made: {error.strerror}", "Name another"
        ) from error
    say(f"Made the key file {path}. Without it the backup cannot be restored: keep a copy elsewhere.")


def _passphrase(file: Path | None, *, is_new: bool) -> str:
    if file is not None:
        return _first_line(file)
    if given := os.environ.get(VARIABLE, ""):
        return given
    if not sys.stdin.isatty():
        raise ClientError(
            "INVALID_ARGUMENT",
            "There is no terminal to ask for a passphrase",
            f"Give --key-file or --passphrase-file, or set {VARIABLE}",
        )
    return typer.prompt("Passphrase of the backup", hide_input=True, confirmation_prompt=is_new, err=True)


def _first_line(path: Path) -> str:
    try:
        with open_regular(path) as file:
            is_open = bool(os.fstat(file.fileno()).st_mode & 0o077)
            text = file.readline(4096).decode().rstrip("\r\n")
    except (BackupError, OSError, UnicodeDecodeError) as error:
        raise ClientError(
            "INVALID_ARGUMENT", f"The passphrase file {path} cannot be read", "Name a text file of yours"
        ) from error
    if is_open:
        raise ClientError("INVALID_ARGUMENT", f"{path} is open to other users", f"Run: chmod 600 {path}")
    if not text:
        raise ClientError("INVALID_ARGUMENT", f"The first line of {path} is empty", "Name another file")
    return text


@contextmanager
def _told() -> Generator[None]:
    try:
        yield
    except BackupError as error:
        code = "ALREADY_EXISTS" if error.is_conflict else "FAILED_PRECONDITION"
        raise ClientError(code, error.what, error.next_step) from error
    except OSError as error:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"{error.filename or 'A file'} cannot be used: {error.strerror or error}",
            "Check the path, and who may read and write there",
        ) from error
