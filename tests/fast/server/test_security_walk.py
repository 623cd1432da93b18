"""Every served method, called by everybody without rights: none is served, and no answer tells an outsider
whether a resource exists. IAM-02.

The methods are the server's own table and the requests are made from the contract, so a new service is walked
without a change here. What is open on purpose is listed here by name.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from neocloud.core import contract
from neocloud.data_plane.gateway_keys import KEY_HEADER
from neocloud.services.iam.rules.roles import allows
from tests.fast.server.walk.asking import request
from tests.fast.server.walk.cloud import TABLE, WalkedCloud, walked_cloud
from tests.fast.server.walk.holdings import Holdings, nothing_like

pytestmark = pytest.mark.slow

NOBODY_S_TOKENS = ("garbage", "eyJhbGciOiJub25lIn0.e30.", "ncsk_statickey-e00nothing_0000")
REFUSALS = {"PERMISSION_DENIED", "NOT_FOUND"}

OPEN_TO_ALL = {
    "nebius.iam.v1.TokenExchangeService/Exchange",
    "neocloud.iam.v1.SignInService/AcceptInvitation",
    "neocloud.iam.v1.SignInService/FinishOidc",
    "neocloud.iam.v1.SignInService/Refresh",
    "neocloud.iam.v1.SignInService/SignOut",
    "neocloud.iam.v1.SignInService/StartOidc",
    "neocloud.iam.v1.SignInService/WithPassword",
}
"""Methods whose request is the proof: no token can be asked for."""

FOR_THE_GATEWAY = {
    "neocloud.inference.v1.GatewayService/Admit",
    "neocloud.inference.v1.GatewayService/ListRoutes",
    "neocloud.inference.v1.GatewayService/ReportTraffic",
    "neocloud.inference.v1.GatewayService/ReportRelease",
    "neocloud.inference.v1.GatewayService/IssueFileKey",
    "neocloud.storage.v1.ObjectGatewayService/Authenticate",
    "neocloud.storage.v1.ObjectGatewayService/Authorize",
    "neocloud.storage.v1.ObjectGatewayService/IssueToken",
    "neocloud.storage.v1.ObjectGatewayService/ListBuckets",
    "neocloud.storage.v1.ObjectGatewayService/ListTransfers",
    "neocloud.storage.v1.ObjectGatewayService/ReportTransfers",
    "neocloud.storage.v1.ObjectGatewayService/ListInventories",
    "neocloud.storage.v1.ObjectGatewayService/ReportInventories",
    "neocloud.storage.v1.ObjectGatewayService/ReportObjectEvents",
    "neocloud.storage.v1.ObjectGatewayService/ReportBuckets",
    "neocloud.storage.v1.ObjectGatewayService/Sign",
}
"""Open to who has the key in the state folder: no token helps, not an admin's either."""

ABOUT_THE_CALLER = {
    "nebius.billing.v1.CalculatorService/EstimateBatch",
    "nebius.billing.v1alpha1.CalculatorService/Estimate",
    "nebius.billing.v1alpha1.CalculatorService/EstimateBatch",
    "neocloud.billing.v1.TokenPriceService/Estimate",
    "neocloud.billing.v1.TokenPriceService/List",
    "nebius.compute.v1.ImageService/ListPublic",
    "nebius.iam.v1.ProfileService/Get",
    "nebius.iam.v1.TenantService/List",
    "nebius.iam.v2.TenantService/GetByName",
    "nebius.iam.v2.TenantService/List",
    "neocloud.billing.v1.TcoService/Estimate",
    "neocloud.billing.v1.TcoService/ListModelChoices",
    "neocloud.billing.v1.TcoService/ListParameters",
    "neocloud.iam.v1.RoleService/Get",
    "neocloud.iam.v1.RoleService/List",
    "neocloud.iam.v1.SshKeyService/Add",
    "neocloud.iam.v1.SshKeyService/List",
    "neocloud.iam.v1.SshKeyService/Remove",
    "neocloud.iam.v1.UserService/ChangePassword",
    "neocloud.iam.v1.UserService/ConfirmTotp",
    "neocloud.iam.v1.UserService/StartTotp",
    "neocloud.search.v1.SearchService/Find",
    "neocloud.slurm.v1.StorageAccessService/Allow",
    "neocloud.slurm.v1.StorageAccessService/Withdraw",
    "neocloud.storage.v1.TemporaryKeyService/Issue",
}
"""Anybody who is signed in may ask, and learns only of what is theirs or everybody's."""

ASK_BY_THEMSELVES = {
    "nebius.compute.v1.InstanceService/BatchGet",
    "nebius.iam.v1.ProjectService/GetByName",
    "nebius.iam.v1.ProjectService/List",
    "nebius.iam.v2.ProjectService/GetByName",
    "nebius.iam.v2.ProjectService/List",
    "nebius.iam.v1.SessionManagementService/Revoke",
    "nebius.registry.v1.ArtifactService/Delete",
    "nebius.registry.v1.ArtifactService/Get",
    "neocloud.common.v1.TrialService/TryCreate",
    "neocloud.iam.v1.SessionService/List",
    "neocloud.registry.v1.VulnerabilityReportService/Get",
    "neocloud.iam.v1.SessionService/Revoke",
}
"""About the caller's own, or with a permission that is asked for elsewhere: walked like the rest."""


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[WalkedCloud]:
    async with walked_cloud(tmp_path) as ready:
        yield ready


def guarded(cloud: WalkedCloud) -> list[str]:
    return [path for path in cloud.paths if path not in OPEN_TO_ALL | FOR_THE_GATEWAY | ABOUT_THE_CALLER]


def methods_with(permission: str | None) -> set[str]:
    return {
        each.path for service in TABLE.services for each in service.methods if each.permission == permission
    }


def test_what_is_open_is_open_on_purpose() -> None:
    assert methods_with(None) == OPEN_TO_ALL | FOR_THE_GATEWAY
    assert methods_with("") <= ABOUT_THE_CALLER | ASK_BY_THEMSELVES


async def test_without_a_good_token_nothing_is_let_through(cloud: WalkedCloud) -> None:
    let_through = [
        (path, token, answer.code)
        for path in cloud.paths
        if path not in OPEN_TO_ALL | FOR_THE_GATEWAY
        for token in (None, *NOBODY_S_TOKENS, cloud.tokens["expired"])
        if (answer := await cloud.ask(path, cloud.victim, token)).code != "UNAUTHENTICATED"
    ]
    assert not let_through


async def test_what_is_the_gateways_is_refused_to_everybody_in_the_same_words(cloud: WalkedCloud) -> None:
    keys = ({}, {KEY_HEADER: ""}, {KEY_HEADER: "guessed"}, {KEY_HEADER: cloud.tokens["victim"]})
    answers = {
        (path.partition("/")[0], await cloud.send(path, request(path, TABLE, cloud.victim), token, **key))
        for path in FOR_THE_GATEWAY
        for token in (None, *NOBODY_S_TOKENS, *cloud.tokens.values(), cloud.victim.static_token)
        for key in keys
    }
    assert {answer.code for _, answer in answers} == {"PERMISSION_DENIED"}
    assert len(answers) == len({service for service, _ in answers}), "one answer for each gateway"


async def test_an_outsider_is_let_through_nowhere(cloud: WalkedCloud) -> None:
    let_through = [
        (path, answer.code, answer.message)
        for path in guarded(cloud)
        if (answer := await cloud.ask(path, cloud.victim, cloud.tokens["outsider"])).code not in REFUSALS
    ]
    assert not let_through


async def test_an_outsider_cannot_tell_what_exists(cloud: WalkedCloud) -> None:
    """An existing and a missing resource are refused in the same words."""
    missing = nothing_like(cloud.victim)
    told = []
    for path in guarded(cloud):
        there = await cloud.ask(path, cloud.victim, cloud.tokens["outsider"])
        nowhere = await cloud.ask(path, missing, cloud.tokens["outsider"])
        if there.seen_as(cloud.victim) != nowhere.seen_as(missing):
            told.append((path, there.seen_as(cloud.victim), nowhere.seen_as(missing)))
    assert not told


async def test_an_outsider_sees_nothing_foreign_in_what_is_theirs(cloud: WalkedCloud) -> None:
    secret = [text.encode() for text in cloud.victim.everything()]
    seen = []
    for path in cloud.paths:
        for held in (cloud.outsider, cloud.victim):
            body = (await cloud.ask(path, held, cloud.tokens["outsider"])).body
            seen += [path for text in secret if text in body]
    assert not seen


async def test_a_viewer_looks_and_changes_nothing(cloud: WalkedCloud) -> None:
    wrong = []
    for path in set(guarded(cloud)) - ASK_BY_THEMSELVES:
        permission = TABLE.permission_of(path)
        answer = await cloud.ask(path, cloud.victim, cloud.tokens["viewer"])
        may = not permission or allows("viewer", permission)
        if (answer.code == "PERMISSION_DENIED") is may or answer.code == "UNAUTHENTICATED":
            wrong.append((path, permission, answer.code, answer.message))
    assert not wrong


def test_no_change_is_guarded_by_a_right_to_look() -> None:
    """A method that changes something and asks for a "get" would be open to every viewer."""
    changes = {
        method.path: method.permission
        for service in TABLE.services
        for method in service.methods
        if method.is_change and method.permission
    }
    assert not {path: permission for path, permission in changes.items() if allows("viewer", permission)}


async def test_a_viewer_never_gets_a_secret(cloud: WalkedCloud) -> None:
    told = []
    for path in cloud.paths:
        answer = await cloud.ask(path, cloud.victim, cloud.tokens["viewer"])
        if answer.code == "OK":
            message = contract.method(path).output.FromString(answer.body)
            told += [(path, name) for name in secrets_in(message)]
    assert not told


async def test_a_static_key_opens_nothing_beyond_its_service(cloud: WalkedCloud) -> None:
    """The account behind it is an admin; the key is for no service at all that is walked here."""
    let_through = [
        (path, answer.code)
        for path in guarded(cloud)
        if (answer := await cloud.ask(path, cloud.victim, cloud.victim.static_token)).code not in REFUSALS
    ]
    assert not let_through


async def test_nothing_foreign_can_be_named_in_a_request(cloud: WalkedCloud) -> None:
    """Every field that names another resource, in every method: with a foreign and with a missing id."""
    missing = nothing_like(cloud.victim)
    walked, wrong = 0, []
    for path in cloud.paths:
        for field_path, prefix in references_of(path, cloud.victim):
            answers = []
            for held in (cloud.victim, missing):
                message = request(path, TABLE, cloud.outsider)
                put(message, field_path, held.ids[prefix])
                answer = await cloud.send(path, message, cloud.tokens["outsider"])
                answers.append(answer.seen_as(held))
            walked += 1
            # What anybody may ask is looked at whole before what it names.
            expected = {"NOT_FOUND", "INVALID_ARGUMENT"} if path in ABOUT_THE_CALLER else {"NOT_FOUND"}
            if answers[0][0] not in expected or answers[0] != answers[1]:
                wrong.append((path, field_path, *answers))
    assert not wrong
    assert walked > 0


def secrets_in(message: Any) -> Iterator[str]:
    """Fields that hold a secret; who somebody is counts as private, not as secret."""
    for field, content in message.ListFields():
        if contract.annotations(field).is_secret and message.DESCRIPTOR.name != "UserAttributes":
            yield f"{message.DESCRIPTOR.full_name}.{field.name}"
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for each in content if field.is_repeated else [content]:
                yield from secrets_in(each)


def references_of(path: str, held: Holdings) -> list[tuple[tuple[str, ...], str]]:
    """(field path, id prefix) of every annotated field of the request that does not say what it is about."""
    found: list[tuple[tuple[str, ...], str]] = []

    def search(descriptor: Any, trail: tuple[str, ...], seen: frozenset[str]) -> None:
        if descriptor.full_name in seen or descriptor.full_name.startswith("google."):
            return
        for field in descriptor.fields:
            if not trail and field.name in ("id", "parent_id", "metadata", "status"):
                continue
            here = (*trail, field.name)
            if field.message_type is not None and not field.message_type.GetOptions().map_entry:
                search(field.message_type, here, seen | {descriptor.full_name})
            nid = contract.annotations(field).nid if field.message_type is None else None
            found.extend((here, prefix) for prefix in (nid.resources if nid else ()) if prefix in held.ids)

    search(contract.method(path).input.DESCRIPTOR, (), frozenset())
    return found


def put(message: Any, field_path: tuple[str, ...], value: str) -> None:
    for name in field_path[:-1]:
        field = message.DESCRIPTOR.fields_by_name[name]
        message = getattr(message, name).add() if field.is_repeated else getattr(message, name)
    last = message.DESCRIPTOR.fields_by_name[field_path[-1]]
    if last.is_repeated:
        getattr(message, last.name).append(value)
    else:
        setattr(message, last.name, value)
