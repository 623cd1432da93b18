"""Programs of clients that `make clients` and `make clients-long` installed."""

from pathlib import Path

import pytest

from tests import ROOT

CLIENTS = ROOT / ".cache" / "clients"


def installed(client: str) -> Path:
    """Return the folder of the client; skip the test where it is missing."""
    folder = CLIENTS / client
    if not (folder / "installed.txt").exists():
        pytest.skip(f"{client} is not installed; `make clients clients-long` installs it")
    return folder
