"""`neo storage`: buckets, and the objects in them."""

from typing import TYPE_CHECKING

from neocloud.cli.lazy import command_group
from neocloud.cli.output import counted, size_text
from neocloud.cli.resources.commands import add_nouns
from neocloud.cli.resources.noun import NounHooks
from neocloud.cli.storage.commands import backup, mount, objects, transfers, verify

if TYPE_CHECKING:
    from neocloud.messages.nebius.storage.v1 import Bucket

app = command_group(
    """Buckets and the objects in them. S3 clients work with the same buckets: neo client-config s3.

These commands sign as your own account, with a key that lasts an hour and is kept in memory alone.

Examples:

  neo storage bucket create data-sets
  neo storage cp train.jsonl s3://data-sets/train/
  neo storage sync ./checkpoints s3://data-sets/checkpoints
  neo storage ls s3://data-sets/train/
  neo storage mount data-sets ./data
  neo storage presign s3://data-sets/train/train.jsonl --expires-in 24h
"""
)
app.command("ls")(objects.ls)
app.command("cp")(transfers.cp)
app.command("mv")(transfers.mv)
app.command("sync")(transfers.sync)
app.command("rm")(objects.rm)
app.command("mount")(mount.mount)
app.command("unmount")(mount.unmount)
app.command("mounts")(mount.mounts)
app.command("presign")(objects.presign)
app.command("verify")(verify.verify)
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)


def contents(bucket: "Bucket") -> str:
    """Return what a bucket holds: "3 objects and 2 older versions (1.2 MiB)"; "" for an empty one."""
    current = [each.counters for each in bucket.status.counters]
    older = [each.non_current_counters for each in bucket.status.counters]
    objects = sum(each.simple_objects_quantity + each.multipart_objects_quantity for each in current)
    versions = sum(each.simple_objects_quantity + each.multipart_objects_quantity for each in older)
    size = sum(each.simple_objects_size + each.multipart_objects_size for each in (*current, *older))
    words = [counted(objects, "object")] if objects else []
    words += [counted(versions, "older version")] if versions else []
    return f"{' and '.join(words)}{f' ({size_text(size)})' if size else ''}" if words else ""


add_nouns(app, "storage", {"bucket": NounHooks(contents=contents)})
