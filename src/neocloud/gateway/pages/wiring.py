"""Puts the page together."""

from starlette.routing import Route
from starlette.types import ASGIApp

from neocloud.core.clock import Clock
from neocloud.gateway.admission import Admission
from neocloud.gateway.pages import assets, passing_on, signing_in
from neocloud.gateway.pages.sessions import Sessions


class Pages:
    """`gateway` is the application that these routes are part of."""

    def __init__(self, admission: Admission, gateway: ASGIApp, clock: Clock) -> None:
        self._admission = admission
        self._gateway = gateway
        self.sessions = Sessions(clock)

    def routes(self) -> list[Route]:
        return [
            *assets.routes(),
            *signing_in.routes(self._admission, self.sessions),
            *passing_on.routes(self._gateway, self.sessions),
        ]
