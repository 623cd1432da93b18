# pyright: strict
"""Describe the content of a bucket in words, for the question before it is deleted."""

from typing import TYPE_CHECKING

from neocloud.cli.output import counted, size_text

if TYPE_CHECKING:
    from neocloud.messages.nebius.storage.v1 import Bucket


def contents(bucket: "Bucket") -> str:
    """ "3 objects and 2 older versions (1.2 MiB)"; "" for an empty bucket."""
    current = [each.counters for each in bucket.status.counters]
    older = [each.non_current_counters for each in bucket.status.counters]
    objects = sum(each.simple_objects_quantity + each.multipart_objects_quantity for each in current)
    versions = sum(each.simple_objects_quantity + each.multipart_objects_quantity for each in older)
    size = sum(each.simple_objects_size + each.multipart_objects_size for each in (*current, *older))
    words = [counted(objects, "object")] if objects else []
    words += [counted(versions, "older version")] if versions else []
    return f"{' and '.join(words)}{f' ({size_text(size)})' if size else ''}" if words else ""
