"""The folder of a filesystem bucket's objects, and how its files are made."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FilesystemView:
    folder: str
    """The root of the filesystem on this machine, as the control plane says."""
    directory: str = ""
    """The directory below it that is the bucket: "/data/sets"; "": the filesystem itself."""
    uid: int = 0
    gid: int = 0
    file_mode: int = 0o644
    directory_mode: int = 0o755
