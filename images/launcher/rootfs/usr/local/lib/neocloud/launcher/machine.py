"""Run the machine from its start to its end: the main program of the container.

Exit code 0: the guest powered itself off. Any other: it was stopped or failed.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from launcher import console, disks, filesystems, names, network, rights, seed
from launcher.command_line import FIRMWARE_VARIABLES, Descriptors, Places, command_line
from launcher.desired import DesiredStateError, Machine, read_desired_state
from launcher.encryption import open_key
from launcher.metadata import Metadata, serve_metadata
from launcher.qmp import Qmp, QmpError

POWER_OFF_SECONDS = 60.0
"""The time for the guest to power off, as promised to it; the pod's own grace period is a little longer."""
FREE_BYTES_TO_CONTINUE = 256 * 1024 * 1024
"""Free bytes on the host with which a machine that was paused by a full disk continues."""
_LOOK_SECONDS = 1.0
_START_SECONDS = 30.0
KILLED, TERMINATED = 137, 143
"""TERMINATED: it powered off because its pod was stopped, as by a reboot of the host; it starts again."""

ERRORS = (
    *(DesiredStateError, network.NetworkError, seed.SeedError, disks.DiskError, rights.RightsError),
    *(filesystems.FilesystemError, QmpError),
)


def main() -> int:
    try:
        return run(read_desired_state(), Places())
    except ERRORS as error:
        _print(str(error))
        return 1


def run(machine: Machine, places: Places) -> int:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    command, descriptors = prepare(machine, places)
    dns = names.Names(names.dnsmasq_command(machine.interface.domain, places.names_log))
    serve_metadata(Metadata(machine), network.METADATA_ADDRESS)
    qemu = subprocess.Popen(
        rights.unprivileged(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        pass_fds=descriptors,
    )
    for descriptor in descriptors:
        os.close(descriptor)
    assert qemu.stdout is not None
    output = console.pump(qemu.stdout, sys.stdout.fileno())
    try:
        return watch(qemu, machine, places, stop, dns)
    finally:
        if qemu.poll() is None:
            qemu.kill()
            qemu.wait()
        output.join(_LOOK_SECONDS)
        dns.stop()


def prepare(machine: Machine, places: Places) -> tuple[list[str], list[int]]:
    """Prepare everything that QEMU needs; return its command line and the descriptors that it inherits."""
    shutil.rmtree(places.folder, ignore_errors=True)
    places.folder.mkdir(parents=True)
    places.folder.chmod(0o711)
    places.qemu.mkdir()
    rights.give(places.qemu, 0o700)
    machine = replace(machine, disks=tuple(disks.prepare(disk) for disk in machine.disks))
    mtu = network.connect(machine.interface)
    servers = machine.interface.nameservers or names.nameservers_of(names.RESOLVER.read_text())
    seed.write_seed(seed.seed_files(machine, mtu, servers), places.seed)
    rights.give(places.seed, 0o400)
    firmware = machine.firmware or disks.firmware_of(machine.boot_disk, places.qemu)
    for number, filesystem in enumerate(machine.filesystems):
        filesystems.serve_filesystem(filesystem, places.filesystem(number))
    variables = firmware_variables(machine, places) if firmware == "uefi" else None
    descriptors = open_devices(machine)
    command = command_line(machine, firmware, variables, places, descriptors)
    return command, descriptors.inherited


def open_devices(machine: Machine) -> Descriptors:
    """Open the devices and keys for QEMU, except the devices of GPUs, which VFIO takes by name only."""
    if machine.gpus:
        for device in Path("/dev/vfio").iterdir():
            rights.give_device(device)
    try:
        kvm = os.open("/dev/kvm", os.O_RDWR) if machine.acceleration == "kvm" else None
        keys = {disk.id: open_key(disk.key) for disk in machine.disks if disk.key}
        return Descriptors(rights.open_tap(network.TAP), kvm, keys)
    except OSError as error:
        raise rights.RightsError(f"A device of the machine cannot be opened: {error}.") from None


def firmware_variables(machine: Machine, places: Places) -> Path:
    """Return the machine's own firmware variables, beside its boot disk, so that they outlive the pod."""
    disk = machine.boot_disk
    file = (places.folder if disk.read_only else disk.path.parent) / "firmware-variables.fd"
    if not file.exists():
        new = file.with_suffix(".new")
        shutil.copyfile(FIRMWARE_VARIABLES, new)
        new.replace(file)
    rights.give(file)
    return file


def watch(
    qemu: "subprocess.Popen[bytes]", machine: Machine, places: Places, stop: threading.Event, dns: names.Names
) -> int:
    """Handle full disks, changed names and stop requests until QEMU ends; return its exit code."""
    monitor = _connect(qemu, places.own_monitor)
    if monitor is None:
        return qemu.wait() or 1
    pressed_at = None
    while qemu.poll() is None:
        if stop.is_set() and pressed_at is None:
            pressed_at = time.monotonic()
            _press(monitor)
        if pressed_at is not None and time.monotonic() - pressed_at > POWER_OFF_SECONDS:
            _print("the guest did not power off; it is killed")
            qemu.kill()
            qemu.wait()
            return KILLED
        _continue_when_there_is_space(monitor, machine)
        dns.refresh()
        _wait(qemu, stop if pressed_at is None else None)
    return TERMINATED if pressed_at is not None and not qemu.returncode else qemu.returncode


def _connect(qemu: "subprocess.Popen[bytes]", path: Path) -> Qmp | None:
    """Connect to QEMU; None when it has ended, with its error in the log."""
    end = time.monotonic() + _START_SECONDS
    while qemu.poll() is None:
        try:
            return Qmp(path)
        except QmpError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
    return None


def _press(monitor: Qmp) -> None:
    """Press the power button, and continue a paused guest, which could not react to it."""
    try:
        if monitor.ask("query-status")["status"] == "paused":
            monitor.ask("cont")
        monitor.ask("system_powerdown")
    except QmpError:
        pass  # it has just ended


def _continue_when_there_is_space(monitor: Qmp, machine: Machine) -> None:
    """Continue a machine that a full disk of the host paused, once there is space; the write is repeated."""
    try:
        if monitor.ask("query-status")["status"] != "io-error":
            return
        folders = {disk.path.parent for disk in machine.disks if not disk.read_only and disk.path.exists()}
        if all(shutil.disk_usage(folder).free > FREE_BYTES_TO_CONTINUE for folder in folders):
            _print("there is space on the disk again; the machine continues")
            monitor.ask("cont")
    except QmpError:
        pass  # it has just ended


def _wait(qemu: "subprocess.Popen[bytes]", stop: threading.Event | None) -> None:
    """Wait for a second, or until QEMU ends or a stop is requested."""
    end = time.monotonic() + _LOOK_SECONDS
    while time.monotonic() < end and qemu.poll() is None and not (stop and stop.is_set()):
        time.sleep(0.05)


def _print(message: str) -> None:
    """Print to stderr, apart from the guest's console."""
    print(f"launcher: {message}", file=sys.stderr, flush=True)
