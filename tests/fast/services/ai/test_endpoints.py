"""Endpoints by the official SDK: made on the default network, stopped, started, refused. CHAT-05."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from nebius.aio.service_error import RequestError
from nebius.api.nebius.ai.v1 import (
    CreateEndpointRequest,
    DeleteEndpointRequest,
    EndpointServiceClient,
    EndpointSpec,
    GetEndpointRequest,
    RestartEndpointRequest,
    StartEndpointRequest,
    StopEndpointRequest,
)
from nebius.api.nebius.common.v1 import ResourceMetadata
from nebius.api.nebius.compute.v1 import (
    CreateFilesystemRequest,
    DeleteFilesystemRequest,
    DiskSpec,
    FilesystemServiceClient,
    FilesystemSpec,
)

from neocloud.engines.base import PathRefused
from neocloud.engines.manifest import limits as resource_limits
from neocloud.services.ai.render import DISK_LABEL
from neocloud.services.ai.rules import DEFAULT_DISK_BYTES
from neocloud.testing.waiting import until
from tests.fast.services.ai.cloud import IMAGE, AiCloud, cloud_in_process

PORT = EndpointSpec.Port
ALLOCATION = "nebius.vpc.v1.Allocation"


DISK = EndpointSpec.DiskSpec(type=DiskSpec.DiskType.NETWORK_SSD, size_bytes=10 << 30)
USUAL: dict[str, Any] = {"image": IMAGE, "platform": "cpu-local", "preset": "2vcpu-4gb", "disk": DISK}


def spec(**more: Any) -> EndpointSpec:
    return EndpointSpec(**{**USUAL, **more})


def port(number: int, **more: Any) -> EndpointSpec.Port:
    return PORT(container_port=number, protocol=PORT.Protocol.HTTP, **more)


def volume(source: str) -> EndpointSpec.VolumeMount:
    mount = EndpointSpec.VolumeMount
    return mount(source=source, container_path="/data", source_path="sets/a", mode=mount.Mode.READ_ONLY)


@pytest_asyncio.fixture(scope="module")
async def refusing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AiCloud]:
    """A cloud for requests that it refuses."""
    async with cloud_in_process(tmp_path_factory.mktemp("refusing")) as ready:
        yield ready


async def create(cloud: AiCloud, desired: EndpointSpec, name: str = "web") -> str:
    operation = await EndpointServiceClient(cloud.sdk).create(
        CreateEndpointRequest(metadata=ResourceMetadata(parent_id=cloud.project_id, name=name), spec=desired)
    )
    return operation.resource_id


async def test_an_endpoint_runs_with_all_that_was_asked_for(cloud: AiCloud) -> None:
    desired = spec(
        container_command="serve --title 'two words'",
        args="--port 8000",
        working_dir="/srv",
        environment_variables=[EndpointSpec.EnvironmentVariable(name="TOKEN", value="s3cret")],
        ports=[port(8000)],
        injected_files=[EndpointSpec.FileInjection(container_path="/srv/a.conf", content=b"hello")],
        shm_size_bytes=1 << 28,
        disk=EndpointSpec.DiskSpec(type=DiskSpec.DiskType.NETWORK_SSD, size_bytes=3 << 30),
        public_ip=True,
    )
    endpoint_id = await create(cloud, desired)
    shown = await cloud.until(endpoint_id, "RUNNING")
    address = shown.status.instances[0].private_ip
    public = shown.status.instances[0].public_ip
    assert list(shown.status.private_endpoints) == [f"{address}:8000"]
    assert list(shown.status.public_endpoints) == [f"{public}:8000"]
    container = cloud.container(endpoint_id)
    assert container["command"] == ["serve", "--title", "two words"]
    assert container["args"] == ["--port", "8000"]
    assert container["workingDir"] == "/srv"
    assert container["env"] == [{"name": "TOKEN", "value": "s3cret"}]
    disk = {"ephemeral-storage": str(3 << 30)}
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "4096Mi", **disk}
    assert "/srv/a.conf" in {mount["mountPath"] for mount in container["volumeMounts"]}
    assert cloud.pod(endpoint_id).ip == address


async def test_a_disk_without_a_size_is_limited_and_a_pod_of_an_earlier_version_only_once_it_is_restarted(
    tmp_path: Path,
) -> None:
    async with cloud_in_process(tmp_path) as cloud:
        endpoint_id = await create(cloud, spec(disk=EndpointSpec.DiskSpec(type=DISK.type)))
        await cloud.until(endpoint_id, "RUNNING")
        limits = cloud.container(endpoint_id)["resources"]["limits"]
        assert limits["ephemeral-storage"] == str(DEFAULT_DISK_BYTES)
    pod = cloud.pod(endpoint_id)
    main = replace(pod.manifest.containers[0], resources=resource_limits(cpus=2, memory_mib=4096))
    labels = {name: value for name, value in pod.manifest.labels.items() if name != DISK_LABEL}
    pod.manifest = replace(pod.manifest, labels=labels, containers=(main,))
    before = len(cloud.engine.applied)
    async with cloud_in_process(tmp_path, cloud.engine) as upgraded:
        await until(lambda: pod.reference in sum(cloud.engine.applied[before:], []))
        await upgraded.until(endpoint_id, "RUNNING")
        assert upgraded.pod(endpoint_id) is pod, "it continues"
        client = EndpointServiceClient(upgraded.sdk)
        await (await client.restart(RestartEndpointRequest(id=endpoint_id))).wait()
        await upgraded.until(endpoint_id, "RUNNING")
        assert "ephemeral-storage" in upgraded.container(endpoint_id)["resources"]["limits"]


async def test_secrets_are_not_read_back(cloud: AiCloud) -> None:
    desired = spec(environment_variables=[EndpointSpec.EnvironmentVariable(name="TOKEN", value="s3cret")])
    endpoint_id = await create(cloud, desired)
    found = await EndpointServiceClient(cloud.sdk).get(GetEndpointRequest(id=endpoint_id))
    assert [(each.name, each.value) for each in found.spec.environment_variables] == [("TOKEN", "")]


async def test_it_stops_keeps_its_address_and_starts_again(cloud: AiCloud) -> None:
    client = EndpointServiceClient(cloud.sdk)
    endpoint_id = await create(cloud, spec(ports=[port(80)]))
    before = (await cloud.until(endpoint_id, "RUNNING")).status.instances[0].private_ip
    await (await client.stop(StopEndpointRequest(id=endpoint_id))).wait()
    assert (await cloud.until(endpoint_id, "STOPPED")).status.instances[0].private_ip == before
    assert cloud.reference(endpoint_id) not in cloud.engine.world.pods
    await (await client.start(StartEndpointRequest(id=endpoint_id))).wait()
    assert (await cloud.until(endpoint_id, "RUNNING")).status.instances[0].private_ip == before


async def test_a_restart_is_another_pod(cloud: AiCloud) -> None:
    endpoint_id = await create(cloud, spec())
    await cloud.until(endpoint_id, "RUNNING")
    before = cloud.pod(endpoint_id)
    operation = await EndpointServiceClient(cloud.sdk).restart(RestartEndpointRequest(id=endpoint_id))
    await operation.wait()
    await cloud.until(endpoint_id, "RUNNING")
    assert cloud.pod(endpoint_id) is not before


async def test_a_program_that_ends_is_restarted_and_reported(cloud: AiCloud) -> None:
    endpoint_id = await create(cloud, spec())
    await cloud.until(endpoint_id, "RUNNING")
    cloud.engine.kill(cloud.reference(endpoint_id), exit_code=3)

    shown = await cloud.when(endpoint_id, lambda found: found.status.state_details.code)
    assert shown.status.state_details.code == "StartedAnew"
    assert "ended once and was restarted" in shown.status.state_details.message


async def test_deletion_leaves_nothing(cloud: AiCloud) -> None:
    endpoint_id = await create(cloud, spec(public_ip=True))
    await cloud.until(endpoint_id, "RUNNING")
    assert len(await cloud.owned(endpoint_id, ALLOCATION)) == 2
    await EndpointServiceClient(cloud.sdk).delete(DeleteEndpointRequest(id=endpoint_id))
    await cloud.gone(endpoint_id)
    assert endpoint_id not in cloud.engine.world.namespaces
    assert await cloud.owned(endpoint_id, ALLOCATION) == []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (
            {"image": "docker.io/library/nginx"},
            f"and other registries are not asked. Push it to a registry (`neo registry registry create`), or"
            f" name one of: {IMAGE}",
        ),
        ({"preset": "900vcpu"}, "is not a preset of cpu-local"),
        ({"auth_token": "abc"}, "nothing in front of the port checks a token"),
        ({"ssh_authorized_keys": ["ssh-ed25519 A"]}, "there is no machine around the container"),
        ({"container_command": "echo 'open"}, "close every quote"),
        ({"subnet_id": "vpcsubnet-e00nothing"}, "There is no resource 'vpcsubnet-e00nothing' here"),
        ({"ports": [port(80, host_port=81)]}, "the container has an address of its own"),
        ({"ports": [port(80), port(80)]}, "is given twice"),
        ({"volumes": [volume("x")]}, 'no filesystem "x"'),
        (
            {"injected_files": [EndpointSpec.FileInjection(container_path="/proc/x", content=b"")]},
            "is a folder of the system",
        ),
        (
            {"injected_files": [EndpointSpec.FileInjection(container_path="/a/../etc", content=b"")]},
            "must be an absolute path below /",
        ),
    ],
)
async def test_what_is_not_offered_is_refused_by_name(
    refusing: AiCloud, wrong: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(RequestError) as refused:
        await create(refusing, spec(**wrong))
    assert complaint in str(refused.value)


async def test_room_is_counted_over_all_that_runs(cloud: AiCloud) -> None:
    made = []
    with pytest.raises(RequestError, match="cannot hold"):
        for number in range(20):
            made.append(await create(cloud, spec(), f"web-{number}"))
    client = EndpointServiceClient(cloud.sdk)
    await (await client.stop(StopEndpointRequest(id=made[0]))).wait()
    made.append(await create(cloud, spec(), "in-its-place"))
    with pytest.raises(RequestError, match="cannot hold"):
        await client.start(StartEndpointRequest(id=made[0]))
    await cloud.until(made[-1], "RUNNING")


async def test_a_filesystem_is_mounted_and_kept(cloud: AiCloud) -> None:
    files = FilesystemServiceClient(cloud.sdk)
    operation = await files.create(
        CreateFilesystemRequest(
            metadata=ResourceMetadata(parent_id=cloud.project_id, name="data"),
            spec=FilesystemSpec(type=FilesystemSpec.FilesystemType.NETWORK_SSD, size_gibibytes=1),
        )
    )
    endpoint_id = await create(cloud, spec(volumes=[volume(operation.resource_id)]))
    await cloud.until(endpoint_id, "RUNNING")
    assert {
        "name": "filesystem-0",
        "mountPath": "/data",
        "subPath": "sets/a",
        "readOnly": True,
    } in cloud.container(endpoint_id)["volumeMounts"]
    with pytest.raises(RequestError, match=endpoint_id):
        await files.delete(DeleteFilesystemRequest(id=operation.resource_id))


async def test_a_path_that_the_engine_refuses_is_an_error_with_its_words(
    cloud: AiCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link in the filesystem: only who owns the files can change it, so nothing is tried in a loop."""
    files, apply = FilesystemServiceClient(cloud.sdk), cloud.engine.apply
    operation = await files.create(
        CreateFilesystemRequest(
            metadata=ResourceMetadata(parent_id=cloud.project_id, name="data"),
            spec=FilesystemSpec(type=FilesystemSpec.FilesystemType.NETWORK_SSD, size_gibibytes=1),
        )
    )

    async def refusing(objects: Any) -> None:
        if any("sets/a" in str(each) for each in objects):
            raise PathRefused('the path "sets/a" is a link')
        await apply(objects)

    monkeypatch.setattr(cloud.engine, "apply", refusing)
    endpoint_id = await create(cloud, spec(volumes=[volume(operation.resource_id)]))
    shown = await cloud.until(endpoint_id, "ERROR")
    assert shown.status.state_details.code == "PathRefused" and "is a link" in str(shown.status)
