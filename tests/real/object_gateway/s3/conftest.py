"""Fixtures that tests of another tier or room have, too."""

from tests.fast.object_gateway.s3.conftest import bucket, s3

__all__ = ["bucket", "s3"]
