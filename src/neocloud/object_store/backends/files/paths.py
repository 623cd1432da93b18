"""Map keys to files. Pure.

"a/b" is the file b in the directory a, "a/b/" the directory b itself. A key that no file can have, such as
"a//b" or "../b", names nothing.
"""

from dataclasses import dataclass

from neocloud.object_store.conditions import key_bytes
from neocloud.object_store.errors import InvalidRequest, KeyTooLong

HIDDEN_PREFIX = ".neocloud-s3-"
"""Names with this prefix are those of files that are being put in place; S3 clients do not see them."""
MAX_NAME_BYTES = 255


class NoFile(InvalidRequest):
    """No file can have this key."""


@dataclass(frozen=True)
class FilePath:
    folders: tuple[str, ...]
    name: str
    """"": the last of the folders itself."""

    @property
    def is_folder(self) -> bool:
        return not self.name

    @property
    def path(self) -> str:
        """The path below the directory of the bucket."""
        return "/".join((*self.folders, self.name) if self.name else self.folders)


def file_path(key: str) -> FilePath:
    """Raises NoFile, KeyTooLong, InvalidKey."""
    key_bytes(key)
    *folders, name = key.split("/")
    for part in (*folders, name) if name else folders:
        _check(part)
    return FilePath(tuple(folders), name)


def _check(part: str) -> None:
    if part in ("", ".", "..") or "\0" in part:
        raise NoFile(
            "The bucket is a directory of a filesystem: the parts of a key between its slashes are names of"
            " files. None may be empty, '.' or '..', or have a NUL character."
        )
    if part.startswith(HIDDEN_PREFIX):
        raise NoFile(f"Names that begin with {HIDDEN_PREFIX} are kept for files that are being written.")
    if len(part.encode()) > MAX_NAME_BYTES:
        raise KeyTooLong(
            f"The bucket is a directory of a filesystem: the parts of a key between its slashes have at most"
            f" {MAX_NAME_BYTES} bytes each."
        )


def is_listed(name: str) -> bool:
    """Return whether a file of this name can be an object: its name is UTF-8, and it is not hidden."""
    if name.startswith(HIDDEN_PREFIX):
        return False
    return name.isascii() or not any("\ud800" <= each <= "\udfff" for each in name)
