# pyright: strict
"""`neo storage`: buckets, and the objects in them."""

from neocloud.cli.lazy import command_group
from neocloud.cli.resources.commands import add_nouns
from neocloud.cli.resources.noun import NounHooks
from neocloud.cli.storage.commands import backup, mount, objects, transfers, verify
from neocloud.cli.storage.commands.bucket_contents import contents

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
add_nouns(app, "storage", {"bucket": NounHooks(contents=contents)})
