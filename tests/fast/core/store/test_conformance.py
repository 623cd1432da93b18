"""Every store does what the protocol says: SQLite in a file and in memory, and PostgreSQL."""

from neocloud.testing.store_conformance import StoreConformance


class TestEveryStore(StoreConformance):
    """The `store` fixture runs each test on all of them."""
