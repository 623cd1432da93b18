"""What the server needs while it runs, and the two questions it asks about each caller."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from neocloud.core import contract
from neocloud.core.seeding import Seeds
from neocloud.core.service import Authenticator, Authorizer, Dependencies, Kind, Subject
from neocloud.core.store.protocol import Store


@dataclass(frozen=True)
class Runtime:
    dependencies: Dependencies
    authenticator: Authenticator
    authorizer: Authorizer
    kinds: dict[str, Kind]
    """All served kinds by message name."""
    notify: Callable[[], None]
    inventory: Callable[[], Any]
    seeds: Seeds = field(default_factory=dict)
    """What bricks put into new resources."""

    @property
    def store(self) -> Store:
        return self.dependencies.store

    def now(self) -> datetime:
        return self.dependencies.clock.now()

    async def authenticate(self, authorization: str) -> Subject:
        """The subject of an Authorization header."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise contract.unauthenticated("The call carries no token. Send 'authorization: Bearer TOKEN'.")
        return await self.authenticator.authenticate(token.strip())
