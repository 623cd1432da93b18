"""Fixtures that tests of another tier or room have, too."""

from tests.fast.recipes.conftest import chats, pytest_collection_modifyitems, reader, tiny_model

__all__ = ["chats", "pytest_collection_modifyitems", "reader", "tiny_model"]
