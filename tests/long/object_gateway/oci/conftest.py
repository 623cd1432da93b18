"""Fixtures that tests of another tier or room have, too."""

from tests.fast.object_gateway.oci.conftest import registry, repository, served

__all__ = ["registry", "repository", "served"]
