"""What the server needs while it runs, and the two questions it asks about each caller."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from neocloud.core import contract
from neocloud.core.defaults import Defaults
from neocloud.core.kind import Kind
from neocloud.core.readers import ResourceReader, Subject, TransactionReader
from neocloud.core.service import Authenticator, Authorizer, Dependencies
from neocloud.core.store.protocol import Store, Transaction
from neocloud.engines.base import Capabilities


@dataclass(frozen=True)
class Runtime:
    dependencies: Dependencies
    authenticator: Authenticator
    authorizer: Authorizer
    kinds: dict[str, Kind]
    """All served kinds by message name."""
    notify: Callable[[], None]
    inventory: Callable[[], Capabilities | None]
    defaults: Defaults = field(default_factory=dict)
    """What creates default resources in new ones."""

    @property
    def store(self) -> Store:
        return self.dependencies.store

    def now(self) -> datetime:
        return self.dependencies.clock.now()

    def reader(self, tx: Transaction, subject: Subject | None, now: datetime) -> ResourceReader:
        """Return what the rules may look up while the server writes a resource for this caller."""
        provided = self.dependencies.provided
        return TransactionReader(tx, now, inventory=self.inventory(), subject=subject, provided=provided)

    async def authenticate(self, authorization: str) -> Subject:
        """The subject of an Authorization header."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise contract.unauthenticated("The call carries no token. Send 'authorization: Bearer TOKEN'.")
        return await self.authenticator.authenticate(token.strip())
