"""Fixtures that tests of another tier or room have, too."""

from tests.fast.object_store.conftest import (
    metadata,
    new_database,
    objects_database,
    postgres,
    postgresql_metadata,
)

__all__ = ["metadata", "new_database", "objects_database", "postgres", "postgresql_metadata"]
