"""Files that appear whole below a folder in which somebody else writes, too.

A file has no name until it is complete: nobody can change it meanwhile, and a process that is killed leaves
nothing. All calls block for as long as a disk does.
"""

import os
import secrets
from typing import BinaryIO

from neocloud.core.cleanup import undo_on_error
from neocloud.core.untrusted.files import Folder


def unnamed_file(folder: Folder) -> BinaryIO:
    """A new file on the file system of the folder, for reading and writing, which only root may open."""
    flags = os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC
    return os.fdopen(os.open(".", flags, 0o600, dir_fd=folder.descriptor), "r+b", buffering=0)


def write_all(file: BinaryIO, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file.fileno(), rest) :]


def give_name(file: BinaryIO, folder: Folder, name: str) -> None:
    """Raises FileExistsError, also for a link."""
    os.link(f"/proc/self/fd/{file.fileno()}", name, dst_dir_fd=folder.descriptor, follow_symlinks=True)


def put_in_place(file: BinaryIO, folder: Folder, name: str, hidden_prefix: str) -> None:
    """Give a file a name in one step, in place of a file or link of this name. For a moment it also has a
    name that begins with the prefix. Raises IsADirectoryError."""
    hidden = f"{hidden_prefix}{secrets.token_hex(8)}"
    give_name(file, folder, hidden)
    with undo_on_error(lambda: folder.unlink(hidden)):
        folder.rename(hidden, name)


def make_owned(folder: Folder, name: str, mode: int, owner: tuple[int, int]) -> Folder:
    """Return the folder in it of this name; a new one belongs to this owner, and is on the disk. Raises
    UnsafePath, NotADirectoryError when something else is there."""
    try:
        return folder.folder(name)
    except FileNotFoundError:
        made = folder.make(name, 0o700)
    with undo_on_error(made.close):
        os.fchown(made.descriptor, *owner)
        os.fchmod(made.descriptor, mode)
        os.fsync(folder.descriptor)
    return made
