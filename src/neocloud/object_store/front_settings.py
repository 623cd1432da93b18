"""Settings of a bucket from S3 clients for which the storage API has no field. Kept with the objects."""

from dataclasses import dataclass

NO_OWNERSHIP = "none"
"""The ownership controls were deleted."""


@dataclass(frozen=True)
class PublicAccessBlock:
    blocks_acls: bool = False
    """Requests with a public ACL are denied."""
    ignores_acls: bool = False
    """There are no public ACLs to ignore."""
    blocks_policy: bool = False
    """AWS policies that are public are denied."""
    restricts: bool = False
    """Rules for anybody count for callers of the bucket's tenant alone."""


@dataclass(frozen=True)
class FrontSettings:
    prefix_rules: tuple[str, ...] = ()
    """The ids of lifecycle rules that came with a Prefix in place of a Filter, and go back so."""
    ownership: str = ""
    """The value of PutBucketOwnershipControls; "": it was not set."""
    public_access: PublicAccessBlock | None = None
