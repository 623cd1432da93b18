"""Fixtures that tests of another tier or room have, too."""

from tests.fast.cli.conftest import (
    closed_home,
    cloud,
    credentials_file,
    neo,
    private_key,
    signed_in,
    user_folders,
)

__all__ = ["closed_home", "cloud", "credentials_file", "neo", "private_key", "signed_in", "user_folders"]
