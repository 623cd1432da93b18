"""Fixtures that tests of another tier or room have, too."""

from tests.fast.object_gateway.s3.conftest import bucket, s3
from tests.fast.object_store.conftest import (
    metadata,
    new_database,
    objects_database,
    postgres,
    postgresql_metadata,
)

__all__ = ["bucket", "metadata", "new_database", "objects_database", "postgres", "postgresql_metadata", "s3"]
