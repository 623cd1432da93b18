"""The API contract in a cache of a test's own: `neo destroy` removes the cache of the user who runs it."""

from pathlib import Path

from neocloud.core import contract
from neocloud.core.contract.cache import descriptor_set


def cache_with_contract(folder: Path) -> Path:
    """Return the folder, as XDG_CACHE_HOME; programs that use it need not build it (6 s)."""
    file = folder / "neocloud" / contract.cache_path().name
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(descriptor_set())
    return folder
