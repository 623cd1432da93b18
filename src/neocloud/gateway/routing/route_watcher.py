# pyright: strict
"""Keep the route table up to date for as long as the gateway runs."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neocloud.gateway.control_plane import ControlPlane, ControlPlaneUnavailable
from neocloud.gateway.routing.routes import RouteTable, load_routes, save_routes

logger = logging.getLogger(__name__)

WAIT_SECONDS = 30
AGAIN_SECONDS = 1.0


class RouteWatcher:
    def __init__(
        self, control_plane: ControlPlane, table: RouteTable, file: Path, on_change: Callable[[Any], None]
    ) -> None:
        self._control_plane = control_plane
        self._table = table
        self._file = file
        self._on_change = on_change
        self.is_connected = False

    def load_from_disk(self) -> None:
        """Use the routes that an earlier gateway saved until the control plane responds."""
        response = load_routes(self._file)
        if response is not None:
            response.version = ""  # request the complete list
            self._take(response)

    async def watch_forever(self) -> None:
        while True:
            try:
                response = await self._control_plane.list_routes(self._known_version(), WAIT_SECONDS)
            except ControlPlaneUnavailable as error:
                if self.is_connected:
                    logger.warning(
                        "The control plane is not reachable; known models are still served: %s", error
                    )
                self.is_connected = False
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            if not self.is_connected:
                logger.info("Connected to the control plane")
            self.is_connected = True
            if response.version != self._known_version() or not self._table.is_known:
                self._take(response)
                await asyncio.to_thread(save_routes, self._file, response)

    def _known_version(self) -> str:
        return self._table.version if self._table.is_known else ""

    def _take(self, response: Any) -> None:
        self._table.follow(response)
        self._on_change(response)
