"""Limits of one caller's requests: each request below stopped or filled the cloud once, and is now refused at
once.

The walks take the methods from the server's own table and the requests from the contract, so a new method or
a new field is covered without a change here.
"""

import base64
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from neocloud.core import contract
from neocloud.core.contract import paging
from neocloud.core.store.group_commit import is_writing, writing
from neocloud.server import validation
from neocloud.services.compute.rules.user_data import user_data_violations
from neocloud.services.compute.rules.yaml_outline import OutlineError, Root, yaml_root
from neocloud.services.iam.rules.keys import read_public_key
from tests.fast.server.walk.asking import request
from tests.fast.server.walk.cloud import TABLE, Answer, WalkedCloud, walked_cloud

ACCOUNTS = "nebius.iam.v1.ServiceAccountService"
INSTANCES = "nebius.compute.v1.InstanceService"
LEVELS = [f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 10)}]}}" for level in range(1, 8)]
MERGE_BOMB = "\n".join(["#cloud-config", "a0: &a0 {x: 1}", *LEVELS])
ALIAS_BOMB = MERGE_BOMB.replace("{<<: ", "").replace("]}", "]")


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[WalkedCloud]:
    async with walked_cloud(tmp_path) as ready:
        yield ready


async def as_json(cloud: WalkedCloud, path: str, body: str) -> httpx.Response:
    token = cloud.tokens["victim"]
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    async with httpx.AsyncClient(base_url=f"http://{cloud.server.addresses.http}", timeout=60) as client:
        return await client.post(f"/{path}", content=body, headers=headers)


def fields_of(answer: Answer) -> list[str]:
    status = contract.message("google.rpc.Status").FromString(answer.details)
    errors = [contract.unpack(each) for each in status.details]
    return [violation.field for error in errors for violation in error.bad_request.violations]


async def create(cloud: WalkedCloud, name: str = "", **metadata: Any) -> Answer:
    path = f"{ACCOUNTS}/Create"
    message = request(path, TABLE, cloud.victim)
    message.metadata.name = name
    message.metadata.labels.update(metadata.get("labels", {}))
    message.spec.description = metadata.get("description", "")
    return await cloud.send(path, message, cloud.tokens["victim"])


def instance(cloud: WalkedCloud, user_data: str) -> Any:
    message = request(f"{INSTANCES}/Create", TABLE, cloud.victim)
    message.metadata.name = "machine"
    message.spec.resources.platform, message.spec.resources.preset = "cpu-d3", "4vcpu-16gb"
    message.spec.boot_disk.attach_mode = 2
    message.spec.boot_disk.existing_disk.id = cloud.victim.ids["computedisk"]
    message.spec.network_interfaces.add(name="eth0", subnet_id=cloud.victim.ids["vpcsubnet"])
    message.spec.network_interfaces[0].ip_address.SetInParent()
    message.spec.cloud_init_user_data = user_data
    return message


@pytest.mark.parametrize(
    "bomb",
    [
        MERGE_BOMB,
        ALIAS_BOMB,
        "#cloud-config\n" + "[" * 3000,
        "a: " + "[" * 3000,
        "#cloud-config\n" + "- [a]\n" * 5400,
    ],
    ids=["merge keys", "aliases", "nesting", "nesting without a header", "many values"],
)
async def test_user_data_that_grows_when_it_is_read_is_refused(cloud: WalkedCloud, bomb: str) -> None:
    answer = await cloud.send(f"{INSTANCES}/Create", instance(cloud, bomb), cloud.tokens["victim"])
    assert answer.code == "INVALID_ARGUMENT"
    assert fields_of(answer) == ["spec.cloud_init_user_data"]
    update = contract.method(f"{INSTANCES}/Update").input()
    update.metadata.id = cloud.victim.ids["computeinstance"]
    update.spec.cloud_init_user_data = bomb
    answer = await cloud.send(f"{INSTANCES}/Update", update, cloud.tokens["victim"])
    assert answer.code == "INVALID_ARGUMENT"
    assert "spec.cloud_init_user_data" in fields_of(answer)


def test_the_bomb_of_the_review_is_short() -> None:
    assert len(MERGE_BOMB) < 500, "no limit of length catches it"


def test_aliases_in_moderation_are_taken() -> None:
    text = "#cloud-config\nkeys: &keys [one, two]\nusers:\n- {name: a, ssh: *keys}\n- {name: b, ssh: *keys}\n"
    assert not list(user_data_violations(text))
    assert yaml_root(text) is Root.MAPPING


@pytest.mark.parametrize("text", ["a: *b", "a: !!python/none x", "a: !own x", "--- a\n--- b\n", "\ud800"])
def test_yaml_that_no_reader_takes_is_refused(text: str) -> None:
    with pytest.raises(OutlineError):
        yaml_root(text)


def test_parsers_refuse_to_work_inside_the_write_transaction() -> None:
    with writing():
        for parse in (yaml_root, read_public_key):
            with pytest.raises(AssertionError, match="write transaction"):
                parse("a: 1")
    assert not is_writing()


async def test_the_store_says_when_it_writes(cloud: WalkedCloud) -> None:
    assert await cloud.store.write(lambda tx: is_writing())
    assert not await cloud.store.read(lambda tx: is_writing())


@pytest.mark.parametrize(
    ("labels", "field"),
    [
        ({f"k{number}": "v" for number in range(65)}, "metadata.labels"),
        ({"k" * 64: "v"}, f"metadata.labels[{'k' * 63}]"),
        ({"k": "v" * 256}, "metadata.labels[k]"),
        ({"k": "é" * 128}, "metadata.labels[k]"),
    ],
    ids=["many", "long key", "long value", "long in bytes"],
)
async def test_labels_beyond_their_limits_are_refused(
    cloud: WalkedCloud, labels: dict[str, str], field: str
) -> None:
    answer = await create(cloud, labels=labels)
    assert (answer.code, fields_of(answer)) == ("INVALID_ARGUMENT", [field])


async def test_labels_and_descriptions_at_their_limits_are_taken(cloud: WalkedCloud) -> None:
    labels = {f"{number:063}": "v" * 255 for number in range(64)}
    answer = await create(cloud, "at-the-limits", labels=labels, description="d" * 1024)
    assert answer.code == "OK"
    assert (await create(cloud, "beyond", description="d" * 1025)).code == "INVALID_ARGUMENT"


async def test_a_list_with_too_many_messages_is_refused(cloud: WalkedCloud) -> None:
    message = instance(cloud, "")
    for _ in range(validation.MAX_ELEMENTS + 1):
        message.spec.secondary_disks.add()
    answer = await cloud.send(f"{INSTANCES}/Create", message, cloud.tokens["victim"])
    assert (answer.code, fields_of(answer)) == ("INVALID_ARGUMENT", ["spec.secondary_disks"])


@pytest.mark.parametrize(
    ("labels", "description"),
    [
        ({str(number): str(number) for number in range(400_000)}, ""),
        ({"k": "v" * 1_000_000}, ""),
        ({}, "d" * 4_000_000),
    ],
    ids=["400,000 labels", "a label of 1 MB", "a description of 4 MB"],
)
async def test_huge_requests_are_refused_before_they_are_decoded(
    cloud: WalkedCloud, labels: dict[str, str], description: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation._Walk, "violations", lambda self, message: pytest.fail("it was decoded"))
    answer = await create(cloud, labels=labels, description=description)
    by_us = answer.code == "INVALID_ARGUMENT" and str(validation.MAX_REQUEST_BYTES) in answer.message
    by_grpc = answer.code == "RESOURCE_EXHAUSTED" and "larger than max" in answer.message
    assert by_us or by_grpc
    body = {"metadata": {"labels": labels}, "spec": {"description": description}}
    answered = await as_json(cloud, f"{ACCOUNTS}/Create", json.dumps(body))
    assert answered.status_code == 400
    assert answered.json()["code"] == "invalid_argument"


async def test_a_label_that_is_changed_again_and_again_leaves_no_history(cloud: WalkedCloud) -> None:
    assert (await create(cloud, "labelled")).code == "OK"
    row = await cloud.store.read(
        lambda tx: tx.find("nebius.iam.v1.ServiceAccount", cloud.victim.ids["project"], "labelled")
    )
    assert row is not None
    update = contract.method(f"{ACCOUNTS}/Update").input()
    update.metadata.id = row.id
    for number in range(15):
        update.metadata.labels["k"] = str(number) * 4_000_000
        answer = await cloud.send(f"{ACCOUNTS}/Update", update, cloud.tokens["victim"])
        assert answer.code in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED")
    assert len(await cloud.store.read(lambda tx: tx.history(resource_id=row.id))) == 1


@pytest.mark.parametrize(
    "body",
    [
        '{"metadata":' * 200 + "{}" + "}" * 200,
        '{"metadata":{"name":' + "[" * 100_000,
        json.dumps({"spec": {"x": [{}] * 20_000}}),
        json.dumps({"metadata": {"labels": {str(number): "" for number in range(12_000)}}}),
        "1" * 10_000,
    ],
    ids=["objects", "lists", "wide", "labels", "a long number"],
)
async def test_json_with_too_much_in_it_is_refused(cloud: WalkedCloud, body: str) -> None:
    answer = await as_json(cloud, f"{ACCOUNTS}/Create", body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")


def long_texts(descriptor: Any, path: str = "", seen: tuple[str, ...] = ()) -> Iterator[tuple[str, int]]:
    """(path, its limit) of the texts of a message and of what is in it, without lists and maps."""
    if descriptor.full_name in seen or descriptor.full_name.startswith("google."):
        return
    for field in descriptor.fields:
        if field.is_repeated:
            continue
        if field.message_type is not None:
            yield from long_texts(field.message_type, f"{path}{field.name}.", (*seen, descriptor.full_name))
        elif limit := validation.text_limit(field):
            yield f"{path}{field.name}", limit


def with_text(message: Any, path: str, text: str) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    *owners, name = path.split(".")
    owner = copy
    for each in owners:
        owner = getattr(owner, each)
    is_bytes = owner.DESCRIPTOR.fields_by_name[name].type == owner.DESCRIPTOR.fields_by_name[name].TYPE_BYTES
    setattr(owner, name, text.encode() if is_bytes else text)
    return copy


async def test_every_text_of_every_method_has_a_limit(cloud: WalkedCloud) -> None:
    complaints, count = [], 0
    for path in cloud.paths:
        message = request(path, TABLE, cloud.victim)
        for name, limit in long_texts(message.DESCRIPTOR):
            answer = await cloud.send(
                path, with_text(message, name, "x" * (limit + 1)), cloud.tokens["victim"]
            )
            count += 1
            if answer.code != "INVALID_ARGUMENT" or name not in fields_of(answer):
                complaints.append((path, name, answer.code, answer.message[:100]))
    assert not complaints
    assert count > 500, "the walk has lost its fields"


async def test_every_change_refuses_long_labels_and_what_is_too_large(cloud: WalkedCloud) -> None:
    complaints, count = [], 0
    for path in [
        each for each in cloud.paths if "metadata" in contract.method(each).input.DESCRIPTOR.fields_by_name
    ]:
        for labels in ({"k": "v" * 256}, {"k" * 64: ""}, {str(number): "" for number in range(65)}):
            message = request(path, TABLE, cloud.victim)
            message.metadata.labels.update(labels)
            answer = await cloud.send(path, message, cloud.tokens["victim"])
            count += 1
            if answer.code != "INVALID_ARGUMENT" or not fields_of(answer):
                complaints.append((path, answer.code, answer.message[:100]))
    assert not complaints
    assert count > 100
    for path in cloud.paths:
        message = request(path, TABLE, cloud.victim)
        unknown = b"\xfa\xff\xff\xff\x0f"  # a field that no message has, with bytes
        size = cloud.server.max_bytes(path) + 1
        body = message.SerializeToString() + unknown + _varint(size) + b"x" * size
        answer = await cloud.send_bytes(path, body, cloud.tokens["victim"])
        if answer.code != "INVALID_ARGUMENT" or "bytes" not in answer.message:
            complaints.append((path, answer.code, answer.message[:100]))
    assert not complaints


def _varint(number: int) -> bytes:
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


CRAFTED = (
    b"x",
    b"-1",
    b"1:2",
    b"9" * 19,
    b"9" * 4300,
    "\u0663".encode(),
    b"\xff",
    b"[]",
    b"[1,2,3]",
    b"1e3",
    b" 1",
    b"[" * 2000,
    b'[1,2,3,"a","b","c",4]',
    b'[1e400,1,1,"a","b","c","d"]',
    b'[99999999999999,1,1,"a","b","c","d"]',
    b"null",
    b"\0",
)


async def test_a_crafted_page_token_never_fails_inside(
    cloud: WalkedCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a check sum that is right: it has no key, so anybody can compute it."""
    monkeypatch.setattr(paging, "_check_sum", lambda content, scope: b"12345678")
    complaints, refused, count = [], 0, 0
    for path in cloud.paths:
        message = request(path, TABLE, cloud.victim)
        if "page_token" not in message.DESCRIPTOR.fields_by_name:
            continue
        for content in CRAFTED:
            message.page_token = base64.urlsafe_b64encode(b"12345678" + content).decode().rstrip("=")
            answer = await cloud.send(path, message, cloud.tokens["victim"])
            count += 1
            refused += answer.code == "INVALID_ARGUMENT"
            if answer.code in ("INTERNAL", "UNKNOWN", "UNAVAILABLE"):
                complaints.append((path, content[:20], answer.code, answer.message[:100]))
    assert not complaints
    assert count > 500 and refused > count / 2
