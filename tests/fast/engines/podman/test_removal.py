"""Removing a cloud while a container's mounts are still in use for a moment."""

from typing import Any, cast

import pytest

from neocloud.engines.base import EngineError
from neocloud.engines.podman import bootstrap
from neocloud.engines.podman.libpod import Libpod


class BusyLibpod:
    """Podman with one container, which it refuses to remove a number of times."""

    def __init__(self, refusals: int, reason: str) -> None:
        self.refusals = refusals
        self._reason = reason

    async def delete(self, path: str, **params: object) -> None:
        assert path == "/containers/one"
        if self.refusals:
            self.refusals -= 1
            raise EngineError(self._reason)


async def removed(libpod: BusyLibpod) -> None:
    await bootstrap._remove_container(cast(Libpod, libpod), "one")  # pyright: ignore[reportPrivateUsage]


async def test_a_container_whose_mounts_are_busy_for_a_moment_is_removed() -> None:
    libpod = BusyLibpod(2, "unmounting storage: device or resource busy")
    await removed(libpod)
    assert libpod.refusals == 0


@pytest.mark.parametrize(("reason", "seconds"), [("device or resource busy", 0.0), ("no space left", 10.0)])
async def test_what_does_not_pass_is_an_error(monkeypatch: Any, reason: str, seconds: float) -> None:
    monkeypatch.setattr(bootstrap, "BUSY_SECONDS", seconds)
    with pytest.raises(EngineError, match=reason):
        await removed(BusyLibpod(1000, reason))
