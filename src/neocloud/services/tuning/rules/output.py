"""The output of a job, its model and checkpoints: a folder of its own in a bucket. Pure."""

import re

from neocloud.services.storage.public import SCHEME, ObjectLocation, folder_place

LONGEST_PREFIX_BYTES = 600
"""Leaves room in a key for the job's folder and the names of files."""
MANIFEST = "neocloud-manifest.json"
"""The file that a folder of a model or checkpoint has once all other files are there."""
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
"""The names of files that are written, the same that models in buckets are read from."""


def output_folder(url: str, job_id: str) -> ObjectLocation | None:
    """Return the folder of a job below "s3://BUCKET[/PREFIX]"; None for any other text."""
    bucket, _, prefix = url.removeprefix(SCHEME).partition("/")
    parts = prefix.removesuffix("/").split("/") if prefix else []
    is_path = all(part and part not in (".", "..") and part.isprintable() for part in parts)
    if not url.startswith(SCHEME) or not bucket or not is_path:
        return None
    if len(prefix.encode()) > LONGEST_PREFIX_BYTES:
        return None
    return folder_place(bucket, "/".join([*parts, job_id]))


def below(folder: ObjectLocation, *names: str) -> ObjectLocation:
    """Return a folder in a folder."""
    return ObjectLocation(folder.bucket, folder.key + "".join(f"{name}/" for name in names))
