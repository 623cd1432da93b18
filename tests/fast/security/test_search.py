"""Attacks on the search: what another tenant or project holds is not found by any condition, texts are taken
as they are and are bounded, and page tokens lead only to what their caller may read. IAM-02.
"""

import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from neocloud.messages.nebius.iam.v1 import GetProfileRequest, GetProfileResponse
from neocloud.messages.neocloud.search.v1 import FindResourcesRequest, FindResourcesResponse

from neocloud.core import contract
from neocloud.core.store import Transaction
from neocloud.services.search.api import page_scope
from tests.fast.server.walk.cloud import Answer, WalkedCloud, insert, walked_cloud

FIND = "neocloud.search.v1.SearchService/Find"
DISK = "nebius.compute.v1.Disk"
HOSTILE = (
    "%",
    "_",
    "%%",
    "a%",
    "*",
    "?",
    "'",
    '"',
    "\\",
    "' OR '1'='1",
    "web' --",
    "\0",
    "web\0",
    "\x7f",
    "[w]eb",
)


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[WalkedCloud]:
    async with walked_cloud(tmp_path) as ready:
        yield ready


async def ask(cloud: WalkedCloud, who: str, **conditions: Any) -> Answer:
    return await cloud.send(FIND, FindResourcesRequest(**conditions), cloud.tokens[who])


async def find(cloud: WalkedCloud, who: str, **conditions: Any) -> FindResourcesResponse:
    answer = await ask(cloud, who, **conditions)
    assert answer.code == "OK", answer.message
    return FindResourcesResponse.FromString(answer.body)


async def label_everything(cloud: WalkedCloud) -> None:
    def work(tx: Transaction) -> None:
        for identifier in cloud.victim.ids.values():
            row = tx.get(identifier)
            if row is not None:
                tx.update(replace(row, labels={"owner": "victim"}))

    await cloud.store.write(work)


async def add_disks(cloud: WalkedCloud, *names: str) -> None:
    project = cloud.victim.ids["project"]
    await cloud.store.write(
        lambda tx: [
            insert(tx, "computedisk", DISK, project, name, labels={name[:63]: name}) for name in names
        ]
    )


async def test_others_find_nothing_of_the_victim(cloud: WalkedCloud) -> None:
    await label_everything(cloud)
    held, everything = cloud.victim.ids, cloud.victim.everything()
    attempts: list[dict[str, Any]] = [
        {"name": cloud.victim.name},
        {"name_prefix": cloud.victim.name[:3]},
        {"ids": [*held.values()]},
        {"labels": {"owner": "victim"}},
        {"parent_ids": [held["project"]]},
        {"parent_ids": [held["vpcsecuritygroup"]]},
        {"parent_ids": [held["project"]], "name": cloud.victim.name},
        {},
        *(
            {"id_prefix": identifier[: len(identifier) - cut]}
            for identifier in held.values()
            for cut in (0, 4)
        ),
    ]
    own_tenant = {"outsider": set[str](), "colleague": {held["tenant"]}}
    for who, known in own_tenant.items():
        for conditions in attempts:
            found = await find(cloud, who, **conditions)
            assert {item.id for item in found.items} & everything <= known, (who, conditions)
    found_by_owner = [(await find(cloud, "victim", **conditions)).items for conditions in attempts]
    assert all(found_by_owner[:8]) and sum(map(bool, found_by_owner[8:])) > 80


async def test_a_hidden_resource_and_none_give_the_same_answer(cloud: WalkedCloud) -> None:
    for kind in TYPES:
        there = cloud.victim.ids[kind]
        nowhere = contract.new_id(kind)
        for field in ("ids", "parent_ids"):
            for kinds in ([], [DISK]):
                for who in OTHERS:
                    told = [
                        await ask(cloud, who, kinds=kinds, **{field: [each]}) for each in (there, nowhere)
                    ]
                    assert told[0] == told[1], (kind, field, who)


TYPES = ("project", "computedisk", "slurmcluster", "group", "vpcsecurityrule", "storagebucket")
OTHERS = ("outsider", "colleague")


async def test_a_viewer_of_one_project_finds_that_alone(cloud: WalkedCloud) -> None:
    await add_disks(cloud, "web")
    colleague = await find(cloud, "colleague")
    parents = {item.parent_id for item in colleague.items}
    own = {item.id for item in colleague.items if item.kind == "nebius.iam.v1.Container"}
    assert cloud.victim.ids["project"] not in parents | own
    assert parents <= own | {"", cloud.victim.ids["tenant"]}
    assert not (await find(cloud, "colleague", name="web")).items


async def test_no_text_is_a_pattern_or_ends_a_statement(cloud: WalkedCloud) -> None:
    await add_disks(cloud, "web", "a%", "_")
    for text in HOSTILE:
        names = {item.name for item in (await find(cloud, "victim", name=text)).items}
        assert names == {text} & {"a%", "_"}
        for field in ("name_prefix", "id_prefix"):
            found = (await find(cloud, "victim", **{field: text})).items
            assert all(getattr(item, field.removesuffix("_prefix")).startswith(text) for item in found)
        found = (await find(cloud, "victim", labels={text: text})).items
        assert {item.name for item in found} == {text} & {"a%", "_"}
        for field in ("ids", "kinds", "parent_ids"):
            assert not (await find(cloud, "victim", **{field: [text]})).items


@pytest.mark.parametrize(
    "conditions",
    [
        {"name": "a" * 1025},
        {"name_prefix": "a" * 1025},
        {"id_prefix": "a" * 256},
        {"ids": ["a"] * 101},
        {"ids": [""]},
        {"ids": ["a" * 256]},
        {"kinds": ["a"] * 101},
        {"parent_ids": ["a"] * 101},
        {"labels": {f"a{at}": "b" for at in range(65)}},
        {"labels": {"a" * 64: "b"}},
        {"labels": {"a": "b" * 256}},
        {"page_size": -1},
        {"page_size": 1001},
        {"page_token": "a" * 5000},
    ],
    ids=str,
)
async def test_what_is_too_much_is_refused(cloud: WalkedCloud, conditions: dict[str, Any]) -> None:
    assert (await ask(cloud, "victim", **conditions)).code == "INVALID_ARGUMENT"


async def test_the_most_of_everything_is_answered(cloud: WalkedCloud) -> None:
    texts = [f"a{at}" for at in range(100)]
    labels = {f"{at:063}": "\0" * 255 for at in range(64)}
    answer = await ask(
        cloud, "victim", ids=texts, kinds=texts, parent_ids=texts, labels=labels, name="\U0010ffff" * 256
    )
    assert answer.code == "OK" and not FindResourcesResponse.FromString(answer.body).items


async def test_page_tokens_are_of_one_caller_and_one_search(cloud: WalkedCloud) -> None:
    await add_disks(cloud, "web-1", "web-2")
    token = (await find(cloud, "victim", name_prefix="web", page_size=1)).next_page_token
    (second,) = (await find(cloud, "victim", name_prefix="web", page_token=token)).items
    assert second.name == "web-2"
    for who, prefix in (("viewer", "web"), ("outsider", "web"), ("victim", "we")):
        assert (await ask(cloud, who, name_prefix=prefix, page_token=token)).code == "INVALID_ARGUMENT"
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    for forged in (raw[:-1], raw[:8] + b"a\0b\0c", b"\0" * 40, raw + b"\0more"):
        text = base64.urlsafe_b64encode(forged).decode().rstrip("=")
        assert (await ask(cloud, "victim", name_prefix="web", page_token=text)).code == "INVALID_ARGUMENT"


async def test_a_forged_page_token_leads_only_to_what_its_caller_may_read(cloud: WalkedCloud) -> None:
    """A reader of the code can write a token with the right check sum."""
    profile = await cloud.send(
        "nebius.iam.v1.ProfileService/Get", GetProfileRequest(), cloud.tokens["outsider"]
    )
    subject = GetProfileResponse.FromString(profile.body).service_account_profile.info.metadata.id
    scope = page_scope(subject, FindResourcesRequest(name_prefix="vict"))
    for position in ("\0\0", "vict\0\0", f"{cloud.victim.name}\0{DISK}\0", "' OR 1=1\0\0"):
        token = contract.page_token(position, scope)
        assert not (await find(cloud, "outsider", name_prefix="vict", page_token=token)).items
    for position in ("one", "one\0two", "a\0b\0c\0d", "\0" * 1000):
        token = contract.page_token(position, scope)
        assert (await ask(cloud, "outsider", name_prefix="vict", page_token=token)).code == "INVALID_ARGUMENT"
