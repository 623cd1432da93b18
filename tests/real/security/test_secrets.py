"""Secrets of tenants: sealed at rest, shown to who may read them, kept by an update of who may not. M5."""

import base64
import contextlib
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nebius.api.nebius.compute.v1 import GetInstanceRequest, InstanceServiceClient, UpdateInstanceRequest

from neocloud.core import contract
from neocloud.core.store import Transaction
from neocloud.server import access
from neocloud.services.iam.rules.roles import ROLES, allows
from neocloud.testing.emulator import Emulator, connected, emulator_process
from tests.fast.server.walk.cloud import TABLE, WalkedCloud, walked_cloud
from tests.fast.services.compute.cloud import instance_spec, machine_cloud

MARKER = "MARKER-4711"
USER_DATA = f"#cloud-config\n# {MARKER}-user-data\n"
FIXTURE = Path(__file__).parent / "fixtures" / "home-9817877.tar.xz"
INSTANCES, ENDPOINTS = "nebius.compute.v1.InstanceService", "nebius.ai.v1.EndpointService"
INVITATIONS = "nebius.iam.v1.InvitationService"


def fill_secrets(message: Any) -> None:
    """Give, in place, every secret text of the message a value."""
    for field in message.DESCRIPTOR.fields:
        known = contract.annotations(field)
        if known.is_secret and field.cpp_type == field.CPPTYPE_STRING and not field.is_repeated:
            setattr(message, field.name, MARKER.encode() if field.type == field.TYPE_BYTES else MARKER)
        elif field.message_type is not None and field.is_repeated and not _is_map(field):
            fill_secrets(getattr(message, field.name).add())
        elif field.message_type is not None and not field.is_repeated and field.containing_oneof is None:
            fill_secrets(getattr(message, field.name))


def _is_map(field: Any) -> bool:
    return field.message_type.GetOptions().map_entry


def fill_all(tx: Transaction, cloud: WalkedCloud) -> list[str]:
    """The ids of the victim's resources that hold secrets now."""
    found = []
    for kind in TABLE.kinds:
        parts = contract.secret_parts(kind.message)
        row = tx.get(cloud.victim.ids.get(kind.id_prefix, ""))
        if row is None or not parts:
            continue
        for part in parts:
            message = type(getattr(contract.message(kind.message)(), part)).FromString(getattr(row, part))
            fill_secrets(message)
            row = type(row)(**{**vars(row), part: message.SerializeToString()})
        tx.update(row)
        found.append(row.id)
    return found


async def test_no_answer_shows_a_secret_to_a_viewer(tmp_path: Path) -> None:
    async with walked_cloud(tmp_path) as cloud:
        assert len(await cloud.store.write(lambda tx: fill_all(tx, cloud))) >= 5
        shown = []
        for path in cloud.paths:
            answer = await cloud.ask(path, cloud.victim, cloud.tokens["viewer"])
            if MARKER.encode() in answer.body or MARKER in answer.message:
                shown.append(path)
        assert shown == []


async def test_who_may_change_a_machine_may_read_its_user_data_back(tmp_path: Path) -> None:
    async with walked_cloud(tmp_path) as cloud:
        await cloud.store.write(lambda tx: fill_all(tx, cloud))
        seen = {}
        for who in ("victim", "viewer"):
            for verb in ("Get", "List", "GetByName"):
                answer = await cloud.ask(f"{INSTANCES}/{verb}", cloud.victim, cloud.tokens[who])
                assert answer.code == "OK", answer
                seen[who, verb] = MARKER.encode() in answer.body
        assert all(is_seen == (who == "victim") for (who, _), is_seen in seen.items()), seen


def test_looking_alone_is_no_right_to_secrets() -> None:
    """And no role may change what it could not send back whole."""
    for kind in TABLE.kinds:
        if not contract.secret_parts(kind.message):
            continue
        permission = f"{kind.permission}.{access.GET_SECRET}"
        holders = {role for role in ROLES if allows(role, permission)}
        assert not holders & {"viewer", "auditor", "compute.viewer", "ai.viewer", "iam.viewer"}
        assert {role for role in ROLES if allows(role, f"{kind.permission}.update")} <= holders


async def test_an_update_by_who_may_not_read_secrets_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the mask of a client that names everything it left blank."""
    async with machine_cloud(tmp_path) as cloud:
        machine = await cloud.machine(cloud_init_user_data=USER_DATA)
        monkeypatch.setattr(access, "GET_SECRET", "nobodyMay")
        monkeypatch.setitem(ROLES, "admin", ROLES["editor"])
        monkeypatch.setattr(
            "neocloud.services.iam.rules.grants.allows", lambda _, permission: "nobodyMay" not in permission
        )
        blanked = await cloud.get("Instance", machine.metadata.id)
        assert blanked.spec.cloud_init_user_data == ""
        blanked.metadata.labels["changed"] = "yes"
        await cloud.update("Instance", blanked, mask="spec.cloud_init_user_data")
        monkeypatch.undo()
        found = await cloud.get("Instance", machine.metadata.id)
        assert (found.spec.cloud_init_user_data, found.metadata.labels["changed"]) == (USER_DATA, "yes")


async def test_an_update_by_who_may_read_secrets_can_erase_them(tmp_path: Path) -> None:
    async with machine_cloud(tmp_path) as cloud:
        spec = instance_spec(cloud_init_user_data=USER_DATA, stopped=True)
        machine = await cloud.until(await cloud.create("Instance", "one", spec), "STOPPED")
        machine.spec.ClearField("cloud_init_user_data")
        await cloud.update("Instance", machine, mask="spec.cloud_init_user_data")
        assert (await cloud.get("Instance", machine.metadata.id)).spec.cloud_init_user_data == ""


# In the files of an emulated cloud


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    return folder


def spellings(secret: str) -> Iterator[bytes]:
    """The secret in plain, and in base64 at each of the three offsets."""
    yield secret.encode()
    for offset in range(3):
        encoded = base64.b64encode(b"\0" * offset + secret.encode())
        yield encoded[-(-offset * 4 // 3) + (1 if offset else 0) : len(encoded) // 4 * 4 - 4]


def files_with(home: Path, *secrets: str) -> list[str]:
    wanted = [each for secret in secrets for each in spellings(secret)]
    files = [file for file in home.rglob("*") if file.is_file()]
    return sorted(
        str(file.relative_to(home)) for file in files if any(each in content_of(file) for each in wanted)
    )


def content_of(file: Path) -> bytes:
    """Return nothing for a temporary file that a running server has renamed since."""
    with contextlib.suppress(FileNotFoundError):
        return file.read_bytes()
    return b""


def make_secrets(cloud: Emulator) -> list[str]:
    """A machine with user data, an endpoint with an environment and a file, an invitation; their ids."""

    def made(service: str, parent_id: str, **spec: Any) -> str:
        metadata = {"parent_id": parent_id, "name": "" if service == INVITATIONS else "web"}
        operation = cloud.client.call(f"{service}/Create", {"metadata": metadata, "spec": spec})
        return cloud.client.wait(operation).resource_id

    subnets = cloud.client.call("nebius.vpc.v1.SubnetService/List", {"parent_id": cloud.project_id})
    subnet_id = subnets.items[0].metadata.id
    place = {"platform": "cpu-e2", "preset": "2vcpu-8gb"}
    disk = {"size_gibibytes": 10, "type": "NETWORK_SSD"}
    source = {"source_image_family": {"image_family": "ubuntu24.04-driverless"}}
    return [
        made(
            INSTANCES,
            cloud.project_id,
            resources=place,
            boot_disk={"attach_mode": "READ_WRITE", "managed_disk": {"name": "b", "spec": disk | source}},
            network_interfaces=[{"name": "eth0", "subnet_id": subnet_id, "ip_address": {}}],
            cloud_init_user_data=USER_DATA,
        ),
        made(
            ENDPOINTS,
            cloud.project_id,
            image="tool",
            subnet_id=subnet_id,
            disk={"type": "NETWORK_SSD", "size_bytes": 10 << 30},
            ports=[{"container_port": 8000, "protocol": "HTTP"}],
            environment_variables=[{"name": "TOKEN", "value": f"{MARKER}-variable"}],
            injected_files=[
                {"container_path": "/etc/key", "content": base64.b64encode(MARKER.encode()).decode()}
            ],
            **place,
        ),
        made(INVITATIONS, cloud.tenant_id, email=f"{MARKER}@bank.example"),
    ]


def test_no_file_of_a_cloud_holds_a_secret_in_plain(home: Path) -> None:
    with emulator_process(home), connected(home) as cloud:
        instance_id, endpoint_id, invitation_id = make_secrets(cloud)
        cloud.client.wait(cloud.client.call(f"{INSTANCES}/Stop", {"id": instance_id}))
        instance = cloud.client.call(f"{INSTANCES}/Get", {"id": instance_id})
        changed = {"id": instance_id, "parent_id": cloud.project_id, "name": "web"}
        spec = contract.to_dict(instance.spec) | {"cloud_init_user_data": USER_DATA + "# again\n"}
        cloud.client.call(f"{INSTANCES}/Update", {"metadata": changed, "spec": spec})
        assert files_with(home, MARKER) == []
        cloud.client.wait(cloud.client.call(f"{ENDPOINTS}/Delete", {"id": endpoint_id}))
        cloud.client.wait(cloud.client.call(f"{INVITATIONS}/Delete", {"id": invitation_id}))
    assert (home / "emulated-world").exists()
    assert files_with(home, MARKER) == []


def test_a_change_with_the_official_sdk_loses_no_user_data(home: Path) -> None:
    with emulator_process(home), connected(home) as cloud:
        instance_id, *_ = make_secrets(cloud)
        sdk = cloud.sdk()
        try:
            client = InstanceServiceClient(sdk)
            found = client.get(GetInstanceRequest(id=instance_id)).wait()
            assert found.spec.cloud_init_user_data == USER_DATA
            found.metadata.labels["changed"] = "yes"
            client.update(UpdateInstanceRequest(metadata=found.metadata, spec=found.spec)).wait()
            again = client.get(GetInstanceRequest(id=instance_id)).wait()
        finally:
            sdk.sync_close()
    assert (again.spec.cloud_init_user_data, again.metadata.labels["changed"]) == (USER_DATA, "yes")


def test_a_state_folder_of_9817877_is_read_and_sealed(home: Path) -> None:
    """Made by that commit's own emulator: a machine with user data, an endpoint, an invitation."""
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(home, filter="data")
    home.chmod(0o700)
    assert files_with(home, "MARKER-") == ["emulated-world", "state.db"]
    with emulator_process(home), connected(home) as cloud:
        parent = {"parent_id": cloud.project_id}
        (machine,) = cloud.client.call(f"{INSTANCES}/List", parent).items
        (endpoint,) = cloud.client.call(f"{ENDPOINTS}/List", parent).items
        (invitation,) = cloud.client.call(f"{INVITATIONS}/List", {"parent_id": cloud.tenant_id}).items
        states = [message.status.state for message in (machine, endpoint)]
        cloud.client.wait(cloud.client.call(f"{INSTANCES}/Stop", {"id": machine.metadata.id}))
    assert "MARKER-user-data-1" in machine.spec.cloud_init_user_data
    assert invitation.spec.email == "MARKER-invited@bank.example"
    assert states == [
        contract.enum("nebius.compute.v1.InstanceStatus.InstanceState").Value("RUNNING"),
        contract.enum("nebius.ai.v1.EndpointStatus.State").Value("RUNNING"),
    ]
    assert files_with(home, "MARKER-user-data-1", "MARKER-environment-1", "MARKER-file-1") == []
    assert files_with(home, "MARKER-invited") == []
