"""Which tests take turns: those that bring up real parts share this host's network, ports and cores.

`make test` runs in two processes. One has these, the other what can go beside them.
"""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
REAL_PARTS = ("conformance", "e2e", "engines/podman", "images")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folders = [HERE / name for name in REAL_PARTS]
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in folders):
            item.add_marker(pytest.mark.xdist_group("real parts"))
