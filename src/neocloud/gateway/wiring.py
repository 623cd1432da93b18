"""Puts the parts of the gateway together: the only file here that knows them all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from neocloud.core.clock import Clock
from neocloud.gateway import looking
from neocloud.gateway.accounts import AccountBook, Ledger
from neocloud.gateway.admission import Admission
from neocloud.gateway.app import GatewayApp
from neocloud.gateway.balance import Balancer
from neocloud.gateway.control_plane import ControlPlane
from neocloud.gateway.following import Follower
from neocloud.gateway.http import Receive, Scope, Send
from neocloud.gateway.metrics import Metrics
from neocloud.gateway.objects.wiring import Objects
from neocloud.gateway.pages import Pages
from neocloud.gateway.proxy import Proxy
from neocloud.gateway.routes import RouteTable
from neocloud.gateway.sender import BatchSender
from neocloud.gateway.settings import GatewaySettings
from neocloud.gateway.traffic import Traffic
from neocloud.gateway.upstream import Pool


class Gateway:
    """`app` is what is served, within `running`."""

    def __init__(
        self, settings: GatewaySettings, control_plane: ControlPlane, ledger: Ledger, clock: Clock
    ) -> None:
        self._control_plane = control_plane
        self.book = AccountBook(ledger, clock)
        self.table = RouteTable()
        self.balancer = Balancer(clock)
        self.pool = Pool()
        self.traffic = Traffic(clock)
        self.metrics = Metrics(self.traffic.in_flight)
        self.admission = Admission(control_plane, settings, clock)
        self.proxy = Proxy(
            self.table, self.book, self.balancer, self.pool, self.traffic, self.metrics, settings
        )
        self._follower = Follower(control_plane, self.table, settings.routes_file, self._routes_changed)
        sender = BatchSender(self.proxy, self.admission, self.traffic, settings.media_domains)
        self.objects = Objects(settings.home, self.admission, sender, settings.api, clock=clock)
        looks = looking.routes(self.admission, self.table, self.metrics, lambda: self._follower.is_connected)
        pages = Pages(self.admission, self._answer, clock)
        routes = [*looks, *self.objects.routes(), *pages.routes()]
        self.app = GatewayApp(self.admission, self.proxy, settings, routes)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.admission.start_from_disk()
        self._follower.start_from_disk()
        loops = [
            asyncio.create_task(self._follower.follow_forever()),
            asyncio.create_task(self.traffic.report_forever(self._control_plane)),
            asyncio.create_task(self.proxy.stop_silent_forever()),
            asyncio.create_task(self.proxy.renew_forever()),
            asyncio.create_task(self.admission.keep_forever()),
        ]
        await self.objects.start()
        try:
            yield
        finally:
            await self.objects.stop()
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            self.pool.close()
            with suppress(OSError):  # said in the log while it ran
                self.admission.keep_on_disk()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)

    def _routes_changed(self, response: Any) -> None:
        self.book.follow(response)
        addresses = self.table.addresses()
        self.pool.keep_only(addresses)
        self.balancer.keep_only(addresses)
