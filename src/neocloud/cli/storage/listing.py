"""List a place: files below a folder, objects below a prefix, by their relative names."""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from neocloud.cli.storage.places import PARTIAL_SUFFIX, BucketPlace, UnsafeKey, key_of
from neocloud.cli.storage.service import s3_errors
from neocloud.core.s3_calls import S3
from neocloud.core.untrusted.files import Folder

DEEPEST = 100
"""Nesting of folders. Each level holds an open file."""


@dataclass(frozen=True)
class Item:
    name: str
    """Relative to the place."""
    size: int
    modified_at: datetime | None = None


@dataclass
class Listing:
    items: dict[str, Item] = field(default_factory=dict[str, Item])
    left_out: list[str] = field(default_factory=list[str])
    """Links and what is not a regular file: they are not followed or read."""
    problems: list[str] = field(default_factory=list[str])


def files_in(folder: Folder) -> Listing:
    """List the regular files below a folder. No link is followed, so nothing outside of it is listed."""
    found = Listing()
    _walk(folder, "", found, 0)
    return found


def _walk(folder: Folder, prefix: str, found: Listing, depth: int) -> None:
    if depth > DEEPEST:
        found.problems.append(f"{prefix}: folders are nested deeper than {DEEPEST}")
        return
    for name in sorted(folder.each_name()):
        relative = prefix + name
        try:
            state = os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)
            if stat.S_ISDIR(state.st_mode):
                with folder.folder(name) as inner:
                    _walk(inner, f"{relative}/", found, depth + 1)
            elif not stat.S_ISREG(state.st_mode):
                found.left_out.append(relative)
            elif not name.endswith(PARTIAL_SUFFIX):
                found.items[key_of(relative)] = Item(relative, state.st_size)
        except UnsafeKey as error:
            shown = relative.encode(errors="surrogateescape").decode(errors="replace")
            found.problems.append(f"{shown} {error}")
        except OSError as error:
            found.problems.append(f"{relative}: {error.strerror or error}")


def objects_in(s3: S3, place: BucketPlace) -> Listing:
    """List the objects below a prefix; those that only mark a folder are left out in silence."""
    found = Listing()
    for item in each_object(s3, place.bucket, place.prefix):
        name = item.name.removeprefix(place.prefix)
        if name and not (name.endswith("/") and item.size == 0):
            found.items[name] = Item(name, item.size, item.modified_at)
    return found


def each_object(s3: S3, bucket: str, prefix: str) -> Iterator[Item]:
    """Yield objects in the order of their keys; their names are whole keys. Raises ClientError."""
    with s3_errors(bucket):
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for each in page.get("Contents", ()):
                yield Item(each["Key"], each["Size"], each["LastModified"])


def level(s3: S3, bucket: str, prefix: str) -> tuple[Sequence[str], Sequence[Item]]:
    """Return the folders and objects whose keys start with a prefix, on one level. Raises ClientError."""
    folders: list[str] = []
    items: list[Item] = []
    with s3_errors(bucket):
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix, Delimiter="/")
        for page in pages:
            folders += [each["Prefix"] for each in page.get("CommonPrefixes", ())]
            items += [Item(e["Key"], e["Size"], e["LastModified"]) for e in page.get("Contents", ())]
    return folders, items
