"""An endpoint and jobs in real containers: a root file system of one static program, reached where its status
says; images that skopeo pushed to a registry. VPC-01."""

import asyncio
import base64
import json
import shlex
import shutil
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from nebius.api.nebius.ai.v1 import (
    DeleteJobRequest,
    EndpointServiceClient,
    EndpointSpec,
    JobServiceClient,
    JobSpec,
    StartEndpointRequest,
    StopEndpointRequest,
)
from nebius.api.nebius.compute.v1 import DiskSpec

from neocloud.control_plane.address_ranges import HostRegistry, with_own_ranges
from neocloud.engines.podman import PodmanEngine
from neocloud.engines.podman.network.namespace_networks import host_subnets
from neocloud.settings.settings import Settings
from neocloud.testing.waiting import until
from tests.e2e.cloud import run
from tests.fast.container_images import busybox_layer, write_layout
from tests.fast.services.ai.cloud import AiCloud
from tests.fast.services.ai.registry import RegistryCloud, registry_cloud
from tests.fast.services.ai.test_endpoints import create as create_endpoint
from tests.fast.services.ai.test_endpoints import port
from tests.fast.services.ai.test_endpoints import spec as endpoint
from tests.fast.services.ai.test_jobs import create as create_job

BUSYBOX = Path("/bin/busybox")
PROGRAMS = ("sh", "httpd", "sleep", "test")
PAGE = "hello from a container"
DEADLINE_SECONDS = 90.0
SECONDS = timedelta(seconds=2)
SMALL = {"platform": "cpu-local", "preset": "1vcpu-1gb"}


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[RegistryCloud]:
    root = tmp_path / "images" / "tool" / "1" / "rootfs"
    for folder in ("bin", "etc", "dev", "proc", "sys", "tmp", "run", "srv"):
        (root / folder).mkdir(parents=True)
    shutil.copy(BUSYBOX, root / "bin" / "busybox")
    for program in PROGRAMS:
        (root / "bin" / program).symlink_to("busybox")
    engine = PodmanEngine(tmp_path)
    own = with_own_ranges(Settings(home=tmp_path), host_subnets())
    ranges = {"private_range": own.private_range, "public_pool": own.public_pool}
    try:
        async with registry_cloud(tmp_path, engine, **ranges, cloud_number=own.cloud_number) as ready:
            yield ready
    finally:
        await engine.destroy()
        await engine.close()
        HostRegistry().remove(tmp_path)


async def answer(address: str) -> str:
    """Return the first answer of the endpoint."""
    return await until(lambda: said_at_once(address), seconds=DEADLINE_SECONDS, poll_seconds=0.1)


async def said_at_once(address: str) -> str:
    """Return the answer to one question; "" when there is none."""
    async with httpx.AsyncClient(trust_env=False, timeout=2) as http:
        try:
            return (await http.get(f"http://{address}/index.html")).text
        except httpx.HTTPError:
            return ""


async def test_an_endpoint_answers_stops_and_answers_again(cloud: AiCloud) -> None:
    desired: dict[str, Any] = {
        "container_command": "httpd -f -p 8000 -h /srv",
        "ports": [port(8000)],
        "injected_files": [
            EndpointSpec.FileInjection(container_path="/srv/index.html", content=PAGE.encode())
        ],
        "public_ip": True,
    }
    endpoint_id = await create_endpoint(cloud, endpoint(**desired))
    shown = await cloud.until(endpoint_id, "RUNNING")
    [private], [public] = shown.status.private_endpoints, shown.status.public_endpoints
    assert await answer(private) == PAGE
    assert await answer(public) == PAGE
    client = EndpointServiceClient(cloud.sdk)
    await client.stop(StopEndpointRequest(id=endpoint_id))
    await cloud.until(endpoint_id, "STOPPED")
    assert await said_at_once(private) == "", (await cloud.engine.observe(endpoint_id)).pods
    await client.start(StartEndpointRequest(id=endpoint_id))
    again = await cloud.until(endpoint_id, "RUNNING")
    assert list(again.status.private_endpoints) == [private]
    assert await answer(private) == PAGE


async def test_jobs_end_as_their_programs_do(cloud: AiCloud) -> None:
    word = JobSpec.EnvironmentVariable(name="WORD", value="two words")
    script = 'sh -c \'test "$WORD" = "two words"\''
    done = await create_job(cloud, "done", container_command=script, environment_variables=[word], **SMALL)
    failed = await create_job(
        cloud,
        "failed",
        container_command="sh -c 'echo loading; printf unfinished >&2; exit 3'",
        restart_attempts=1,
        **SMALL,
    )
    late = await create_job(cloud, "late", container_command="sleep 1000", timeout=SECONDS, **SMALL)
    too_much = "sh -c 'busybox dd if=/dev/zero of=/tmp/file bs=1M count=64 || exit 28'"
    disk = JobSpec.DiskSpec(type=DiskSpec.DiskType.NETWORK_SSD, size_bytes=32 << 20)
    full = await create_job(cloud, "full", container_command=too_much, disk=disk, **SMALL)
    await cloud.until(done, "COMPLETED", "FAILED")
    ended = await cloud.row(done)
    assert ended is not None and ended.state == "COMPLETED"
    details = (await cloud.until(failed, "FAILED")).status.state_details
    assert (details.code, "3" in details.message) == ("Exited", True)
    assert (await cloud.until(late, "FAILED")).status.state_details.code == "TimedOut"
    assert "28" in (await cloud.until(full, "FAILED")).status.state_details.message
    for job_id in (done, failed, late, full):
        assert (await cloud.engine.observe(job_id)).pods == ()
    kept = await cloud.call("neocloud.ai.v1.LogService/ReadJobLog", id=failed)
    assert (list(kept.lines), kept.run, kept.is_complete) == (["loading", "unfinished"], "1-2", True)


ATTACK = """
busybox cat /proc/self/uid_map
busybox grep CapBnd /proc/self/status
busybox unshare -U -r busybox true && echo escaped
busybox mknod /tmp/disk b 8 0 && echo device
busybox chroot / /bin/busybox true && echo root
echo end
sleep 30
"""


async def test_root_of_an_image_is_nobody_here_and_makes_no_namespace(cloud: AiCloud) -> None:
    job_id = await create_job(cloud, "attack", container_command="sh -c", args=shlex.quote(ATTACK), **SMALL)
    said = await attacked(cloud, job_id)
    inside, first, size = said[0].split()
    assert inside == "0" and int(first) > 0 and int(size) <= 1 << 16, "not the machine's users"


async def attacked(cloud: AiCloud, job_id: str) -> list[str]:
    """Return what ATTACK says in a job, once nothing of it has worked."""
    await cloud.until(job_id, "RUNNING")
    said = await until(lambda: log_of(cloud, job_id), holds=lambda lines: "end" in lines, seconds=60)
    rights = int(said[1].split()[1], 16)
    for name, bit in (("SYS_CHROOT", 18), ("MKNOD", 27), ("NET_RAW", 13), ("SYS_ADMIN", 21)):
        assert not rights >> bit & 1, name
    assert not {"escaped", "device", "root"} & set(said), said
    return said


async def push(cloud: RegistryCloud, tag: str, folder: Path, **image: Any) -> str:
    """Push an image to the registry of the cloud as people do; return its name."""
    layout = write_layout(folder / tag, [busybox_layer()], **image)
    name, key = f"{cloud.fqdn}/tool:{tag}", folder / "auth.json"
    host = cloud.fqdn.partition("/")[0]
    owner = base64.b64encode(f"iam:{cloud.token}".encode()).decode()
    key.write_text(json.dumps({"auths": {host: {"auth": owner}}}))
    options = ("--dest-authfile", str(key), "--dest-tls-verify=false")
    await asyncio.to_thread(run, ["skopeo", "copy", *options, f"oci:{layout}", f"docker://{name}"])
    return name


async def test_images_of_a_registry_run_and_are_removed(cloud: RegistryCloud, tmp_path: Path) -> None:
    await cloud.registry()
    page = "busybox mkdir -p /srv; echo $WORD > /srv/index.html; exec busybox httpd -f -p 8000 -h /srv"
    config = {"Entrypoint": ["sh", "-c"], "Cmd": [page], "Env": ["PATH=/bin", f"WORD={PAGE}"]}
    serve = await push(cloud, "serve", tmp_path, settings=config)
    other = await push(cloud, "other", tmp_path, settings=config, architecture="s390x")
    endpoint_id = await create_endpoint(cloud, endpoint(image=serve, ports=[port(8000)]))
    shown = await cloud.until(endpoint_id, "RUNNING")
    assert f"The image {serve} is sha256:" in shown.status.state_details.message
    assert (await answer(shown.status.private_endpoints[0])).strip() == PAGE
    said = await create_job(
        cloud, "said", image=serve, container_command="sh -c 'echo hello; id -u; sleep 5'", **SMALL
    )
    await cloud.until(said, "RUNNING")
    lines = lambda: log_of(cloud, said)  # noqa: E731
    assert await until(lines, holds=lambda lines: len(lines) == 2, seconds=20) == ["hello", "0"]
    read = "neocloud.ai.v1.LogService/ReadJobLog"
    running = await cloud.call(read, id=said, tail=1)
    assert list(running.lines) == ["0"] and not running.is_complete
    await cloud.until(said, "COMPLETED")
    rest = await cloud.call(read, id=said, first_line=1, run=running.run)
    assert list(rest.lines) == ["0"] and rest.is_complete
    attack = await create_job(
        cloud, "attack", image=serve, container_command="sh -c", args=shlex.quote(ATTACK), **SMALL
    )
    await attacked(cloud, attack)
    await JobServiceClient(cloud.sdk).delete(DeleteJobRequest(id=attack))
    refused = await create_job(cloud, "other", image=other, **SMALL)
    details = (await cloud.until(refused, "ERROR")).status.state_details
    assert details.code == "ImageUnusable" and "linux/s390x" in details.message
    gone = await create_job(cloud, "gone", image=serve.replace(":serve", ":gone"), **SMALL)
    details = (await cloud.until(gone, "ERROR")).status.state_details
    unread = await cloud.call(read, id=gone)
    assert (details.code, unread.reason, len(unread.lines)) == ("ImageMissing", details.message, 0)
    assert len(await cloud.engine.pulled_images()) == 1
    await EndpointServiceClient(cloud.sdk).stop(StopEndpointRequest(id=endpoint_id))
    await cloud.until(endpoint_id, "STOPPED")
    await until(cloud.engine.pulled_images, holds=lambda found: not found, seconds=20)


async def log_of(cloud: AiCloud, job_id: str) -> list[str]:
    """Return the log of a job."""
    return [line async for line in cloud.engine.logs(cloud.reference(job_id))]
