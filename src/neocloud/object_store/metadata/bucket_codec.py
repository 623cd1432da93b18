"""Buckets as rows: what the control plane wants of a bucket, in JSON."""

from dataclasses import fields, replace

import msgspec
import orjson

from neocloud.object_store.types import Bucket, DesiredBucket


def encode(bucket: Bucket) -> bytes:
    """Return all but the document."""
    return orjson.dumps(replace(bucket, document=b""), default=bytes.decode)


def decode(settings: bytes, document: bytes) -> Bucket:
    return replace(msgspec.json.decode(settings, type=Bucket), document=document)


def applied(desired: DesiredBucket, before: Bucket | None) -> Bucket:
    """Return the bucket as it will be; its object lock and the settings of the S3 front stay."""
    bucket = Bucket(**{each.name: getattr(desired, each.name) for each in fields(DesiredBucket)})
    if before is None:
        return bucket
    return replace(
        bucket,
        has_object_lock=before.has_object_lock,
        default_retention=before.default_retention,
        front=before.front,
    )
