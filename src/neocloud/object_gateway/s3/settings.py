"""The settings of the S3 front."""

from dataclasses import dataclass

DEFAULT_REGION = "eu-north1"


@dataclass(frozen=True)
class S3Settings:
    region: str = DEFAULT_REGION
    """The answer of GetBucketLocation. Signatures of any region are accepted."""
    domains: tuple[str, ...] = ("localhost",)
    """Names below which a bucket is named by the host: "bucket.s3.example.com"."""
    stale_seconds: float = 60.0
    """How long known keys and rights are used while the control plane does not answer."""
    down_seconds: float = 600.0
    """The same while nothing listens at its address, so nobody can take them away either."""
    requests_per_second: float = 2000.0
    """Sustained requests of one tenant, with a burst of ten seconds; 0: no limit."""
