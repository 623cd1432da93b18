"""Fixtures that tests of another tier or room have, too."""

from tests.e2e.conftest import bank, cloud, images, local_user, model

__all__ = ["bank", "cloud", "images", "local_user", "model"]
