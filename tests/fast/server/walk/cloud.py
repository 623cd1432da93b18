"""The whole cloud's API over a fake engine with three tenants' worth of people: victim, outsider, viewer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from neocloud.messages.nebius.iam.v1 import AccessPermitSpec
from neocloud.messages.nebius.iam.v1 import GroupMembershipSpec as MembershipSpec

from neocloud.control_plane.composition import SERVICES, compose
from neocloud.core import contract
from neocloud.core.clock import SystemClock
from neocloud.core.service import Dependencies, register_services
from neocloud.core.store import OperationRow, Resource, Store, Transaction, open_store
from neocloud.engines.fake import FakeEngine
from neocloud.server import ApiServer
from neocloud.services import iam
from neocloud.services.iam.access.account_keys import new_token
from neocloud.services.iam.access.tokens import AccessClaims, find_signing_key, sign_access_token
from neocloud.services.iam.types import (
    ACCESS_PERMIT,
    CONTAINER,
    GROUP,
    GROUP_MEMBERSHIP,
    SERVICE_ACCOUNT,
    IamState,
    TokenIssuer,
)
from neocloud.settings.settings import Settings
from tests.fast.server.walk.asking import Table, request
from tests.fast.server.walk.holdings import Holdings, hold_one_of_each
from tests.fast.services.iam import keys

TABLE = Table(SERVICES)


@dataclass(frozen=True)
class Answer:
    code: str
    message: str = ""
    details: bytes = b""
    body: bytes = b""

    def seen_as(self, held: Holdings) -> tuple[str, str, str]:
        """Code, message and details with ids replaced by what they are ids of."""
        details = contract.message("google.rpc.Status").FromString(self.details)
        shown = [contract.unpack(each) for each in details.details]
        return self.code, held.normal(self.message), held.normal(str(shown))


@dataclass
class WalkedCloud:
    server: ApiServer
    store: Store
    channel: grpc.aio.Channel
    victim: Holdings
    outsider: Holdings
    tokens: dict[str, str]
    """By who has it: victim and outsider (admins), viewer, colleague (an editor of another project of the
    victim's tenant), expired."""

    @property
    def paths(self) -> list[str]:
        return sorted(self.server.paths)

    async def ask(self, path: str, held: Holdings, token: str | None) -> Answer:
        """Call the method about what is held."""
        return await self.send(path, request(path, TABLE, held), token)

    async def send(self, path: str, message: Any, token: str | None, **headers: str) -> Answer:
        return await self.send_bytes(path, message.SerializeToString(), token, **headers)

    async def send_bytes(self, path: str, body: bytes, token: str | None, **headers: str) -> Answer:
        metadata = tuple(headers.items())
        if token is not None:
            metadata = (("authorization", f"Bearer {token}"), *metadata)
        try:
            answered = await self.channel.unary_unary(f"/{path}")(body, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            trailers: dict[str, Any] = dict(error.trailing_metadata() or ())
            details = trailers.get("grpc-status-details-bin", b"")
            return Answer(error.code().name, error.details() or "", details)
        return Answer("OK", body=answered)


@asynccontextmanager
async def walked_cloud(
    home: Path,
    database: Path | None = None,
    *,
    calls_per_second: float = 0.0,
    clock: SystemClock | None = None,
) -> AsyncIterator[WalkedCloud]:
    """Walks call as fast as they can, so there is no limit by default."""
    clock = clock or SystemClock()
    settings = Settings(home=home, calls_per_second=calls_per_second, sign_ins_per_second=calls_per_second)
    engine = FakeEngine()
    composition = compose(settings, engine, clock)
    inventory = await engine.capabilities()
    store = await open_store(database or ":memory:", b"k" * 32, clock)
    dependencies = Dependencies(store, clock, engine, settings, composition.provided)
    register_services(SERVICES, dependencies)
    server = ApiServer(
        SERVICES,
        iam.StoreAuthenticator(store, clock),
        iam.StoreAuthorizer(store, clock),
        dependencies,
        inventory=lambda: inventory,
    )
    await server.start()
    try:
        first = await iam.bootstrap(store, clock, make_key=keys.rsa_key)
        other = await iam.bootstrap(store, clock, tenant_name="other-bank", make_key=keys.other_rsa_key)
        victim = await store.write(lambda tx: _hold(tx, first, "victims-own"))
        outsider = await store.write(lambda tx: _hold(tx, other, "outsiders-own"))
        viewer_id = await store.write(lambda tx: _add_viewer(tx, first))
        colleague_id = await store.write(lambda tx: _add_colleague(tx, first))
        issue = dependencies.provided.get(TokenIssuer)
        tokens = {
            who: (await issue(account_id, timedelta(minutes=10)))[0]
            for who, account_id in (
                ("victim", first.service_account_id),
                ("viewer", viewer_id),
                ("colleague", colleague_id),
                ("outsider", other.service_account_id),
            )
        }
        tokens["expired"] = await store.read(lambda tx: _expired_token(tx, first.service_account_id))
        async with grpc.aio.insecure_channel(server.addresses.grpc) as channel:
            yield WalkedCloud(server, store, channel, victim, outsider, tokens)
    finally:
        await server.stop(grace_seconds=0)
        await store.close()


def _hold(tx: Transaction, first: iam.Bootstrap, name: str) -> Holdings:
    held = hold_one_of_each(
        tx, TABLE.kinds, tenant_id=first.tenant_id, project_id=first.project_id, name=name
    )
    key_id = held.ids["statickey"]
    key = tx.get(key_id)
    assert key is not None
    tx.update(replace(key, state=IamState.ACTIVE, owner_id=first.service_account_id))
    rows = {prefix: tx.get(identifier) for prefix, identifier in held.ids.items()}
    operations = {prefix: _operation(tx, row, first) for prefix, row in rows.items() if row is not None}
    return replace(held, static_token=new_token(tx, key_id), operations=operations)


def _operation(tx: Transaction, row: Resource, first: iam.Bootstrap) -> str:
    operation = OperationRow(
        id=contract.new_id("operation"),
        resource_id=row.id,
        resource_kind=row.kind,
        parent_id=row.parent_id,
        method="x/Create",
        description="Create it",
        created_by=first.service_account_id,
        created_at=datetime.now(UTC),
        resource_version=1,
    )
    tx.insert_operation(operation)
    return operation.id


def _add_viewer(tx: Transaction, first: iam.Bootstrap) -> str:
    group = tx.find(GROUP, first.tenant_id, "viewers")
    assert group is not None
    return add_account(tx, first.project_id, "looker", group)


def _add_colleague(tx: Transaction, first: iam.Bootstrap) -> str:
    project = insert(tx, "project", CONTAINER, first.tenant_id, "colleagues-own")
    group = insert(tx, "group", GROUP, first.tenant_id, "colleagues")
    permit = AccessPermitSpec(resource_id=project.id, role="editor").SerializeToString()
    insert(tx, "accesspermit", ACCESS_PERMIT, group.id, spec=permit, owner_id=group.id)
    return add_account(tx, project.id, "colleague", group)


def add_account(tx: Transaction, project_id: str, name: str, group: Resource) -> str:
    account = insert(tx, "serviceaccount", SERVICE_ACCOUNT, project_id, name)
    member = MembershipSpec(member_id=account.id).SerializeToString()
    insert(tx, "groupmembership", GROUP_MEMBERSHIP, group.id, spec=member, owner_id=account.id)
    return account.id


def insert(tx: Transaction, prefix: str, kind: str, parent_id: str, name: str = "", **more: Any) -> Resource:
    now = datetime.now(UTC)
    row = Resource(contract.new_id(prefix), kind, parent_id, name, now, now, **more)
    tx.insert(row)
    return row


def _expired_token(tx: Transaction, account_id: str) -> str:
    key = find_signing_key(tx)
    assert key is not None
    before = datetime.now(UTC) - timedelta(hours=2)
    return sign_access_token(AccessClaims(account_id, account_id, before, before + timedelta(hours=1)), key)
