"""Prepare this machine before the first pod, and remove every trace of the engine at its end.

Before the first pod: folders, the sandbox, the resolver file, the tmpfs for Secrets. Runs once per engine
object, so also after a reboot that removed the mounts. Blocking and repeatable.

Removal may be repeated and works on an incomplete set-up, with or without a running service. The state that
netavark shares between all Podmans of the machine stays: its address list under /run/containers, and IP
forwarding, which it switched on.
"""

import asyncio
import logging
import shutil
import time
from pathlib import Path

from neocloud.core.osfiles import make_folder
from neocloud.engines.base import EngineError, EngineUnavailable
from neocloud.engines.podman.containers import end_processes, remove_groups
from neocloud.engines.podman.host import Host, resolver_configuration
from neocloud.engines.podman.layout import Layout, read_record
from neocloud.engines.podman.libpod import Libpod
from neocloud.engines.podman.network.addresses import withdraw_public_addresses, withdraw_service_addresses
from neocloud.engines.podman.network.attachments import write_in_place
from neocloud.engines.podman.network.firewall import render_tables
from neocloud.engines.podman.network.named_namespaces import leave_folder
from neocloud.engines.podman.network.netavark import remove_network_rules, remove_tables
from neocloud.engines.podman.network.public_interface import PublicInterface
from neocloud.engines.podman.network.security_rules import load
from neocloud.engines.podman.network.virtual_networks import NetworkSnapshot
from neocloud.engines.podman.no_namespaces import profile_text
from neocloud.engines.podman.service import PodmanService
from neocloud.engines.podman.storage.mounts import mount_tmpfs, mounts_below, remove_tree, unmount

logger = logging.getLogger(__name__)

_SANDBOX_FOLDERS = ("dev", "etc", "proc", "run", "sys", "tmp")
_INTERFACES = Path("/sys/class/net")
BUSY_SECONDS = 10.0
_BUSY_POLL_SECONDS = 0.2


def prepare(layout: Layout, host: Host) -> None:
    """Create what pods need and the machine may have lost. Raises EngineError."""
    try:
        for folder in (layout.engine, layout.namespaces, layout.volumes):
            folder.mkdir(parents=True, exist_ok=True)
        layout.engine.chmod(0o700)
        mount_tmpfs(layout.secrets)
        resolver, _ = resolver_configuration()
        write_in_place(layout.resolv_conf, resolver)
        write_in_place(layout.container_mark, "")
        if profile := profile_text():
            write_in_place(layout.no_namespaces, profile)
        _make_sandbox(layout.sandbox, Path(host.init))
    except OSError as error:
        raise EngineError(
            f"The state folder {layout.home} cannot be used: {error}; check its owner and free space."
        ) from error


def _make_sandbox(root: Path, init: Path) -> None:
    """Create a root file system with only the init program, which waits for ever and reaps."""
    make_folder(root)
    for name in _SANDBOX_FOLDERS:
        make_folder(root / name)
    program = root / "catatonit"
    if not program.exists() or program.stat().st_size != init.stat().st_size:
        shutil.copy(init, program)


def unmount_all(layout: Layout) -> None:
    """Unmount everything inside our folders, deepest first; the state folder may be a disk of its own."""
    for point in [*mounts_below(layout.home), *mounts_below(layout.run)]:
        if point == layout.run or any(map(point.is_relative_to, (layout.podman_view, layout.podman))):
            unmount(point, lazily=True)  # a clean-up process of Podman may still be in it
        elif point != layout.home:
            unmount(point)


async def destroy(layout: Layout, libpod: Libpod, service: PodmanService) -> None:
    """Remove containers, networks, images, rules, mounts and files."""
    if await asyncio.to_thread(layout.podman.exists):
        try:
            await service.ensure()
            await _remove_from_podman(layout, libpod)
        except EngineUnavailable as error:  # a state that Podman cannot read must not prevent its removal
            logger.warning("Removing the state folder without Podman: %s", error)
    await service.stop()
    await asyncio.to_thread(end_processes, layout)
    await withdraw_public_addresses(layout, ())
    await withdraw_service_addresses(layout)
    had_networks = bool(read_record(layout.engine / "subnets.json"))
    await load(render_tables(layout, [], NetworkSnapshot() if had_networks else None))
    await PublicInterface(layout).remove_table()
    await _remove_bridges(layout)
    await remove_tables(layout)
    await asyncio.to_thread(leave_folder)
    await asyncio.to_thread(_remove_files, layout)


async def _remove_from_podman(layout: Layout, libpod: Libpod) -> None:
    containers = await libpod.get("/containers/json", all=True)
    dependents_first = sorted(containers, key=lambda row: row["Names"][0].endswith("._"))
    for row in dependents_first:
        await _remove_container(libpod, row["Id"])
    for network in await libpod.get("/networks/json"):
        if network["name"].startswith(f"neocloud-{layout.id}-"):
            await libpod.delete(f"/networks/{network['name']}", force=True)
            await remove_network_rules(network["name"])
    await libpod.request("DELETE", "/images/remove", params={"all": True, "force": True})


async def _remove_container(libpod: Libpod, container_id: str) -> None:
    """Remove a container. Just after its processes ended, another of Podman's may still be in its mounts."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            await libpod.delete(f"/containers/{container_id}", force=True, timeout=0)
            return
        except EngineUnavailable:
            raise
        except EngineError as error:
            if "busy" not in str(error) or time.monotonic() >= deadline:
                raise
        await asyncio.sleep(_BUSY_POLL_SECONDS)


async def _remove_bridges(layout: Layout) -> None:
    """Remove bridges that a crash left; otherwise they are removed with their last container."""
    names = await asyncio.to_thread(lambda: [path.name for path in _INTERFACES.iterdir()])
    for name in names:
        if name.startswith(layout.interface_prefix):
            process = await asyncio.create_subprocess_exec("ip", "link", "delete", name)
            await process.wait()


def _remove_files(layout: Layout) -> None:
    unmount_all(layout)
    for folder in (layout.podman, layout.engine, layout.volumes, layout.run):
        try:
            remove_tree(folder)
        except OSError as error:
            raise EngineError(f"{folder} could not be removed: {error}; try again.") from error
    remove_groups(layout)
