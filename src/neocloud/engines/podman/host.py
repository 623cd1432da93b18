"""Properties of this machine: Podman and its programs, cgroups, limits, name servers, KVM.

Reads only. Raises EngineUnavailable, with what to install or do, if Podman cannot be used at all; lesser
problems become warnings that `neo status` shows.

Whether guests can run on the processor (kvm) or have to be emulated (tcg) is tested with a tiny guest,
because /dev/kvm alone means little: in a nested machine it may exist and still fail with every ordinary
guest. The guest is 64-bit code with page tables, and one instruction that processors know and the emulator
inside KVM does not. It runs in a process of its own with a time limit:

    python -m neocloud.engines.podman.host
"""

import ctypes
import fcntl
import functools
import mmap
import os
import platform
import re
import resource
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from neocloud.engines.base import EngineError, EngineUnavailable

OLDEST_PODMAN = (4, 3)
_CAP_SYS_RESOURCE = 24
_INSTALL = "apt-get install podman runc catatonit netavark nftables"
_RESOLVERS = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
_GUEST_SECONDS = 5.0
_DEVICE = "/dev/kvm"
_CREATE_VM, _VCPU_MAP_SIZE, _CREATE_VCPU, _RUN = 0xAE01, 0xAE04, 0xAE41, 0xAE80
_SET_MEMORY, _GET_CPUID, _SET_CPUID = 0x4020AE46, 0xC008AE05, 0x4008AE90
_SET_REGISTERS, _GET_SPECIAL, _SET_SPECIAL = 0x4090AE82, 0x8138AE83, 0x4138AE84
_CPUID_ENTRIES = 256
_EXIT_IO = 2
_PORT = 0x10
_MEMORY_BYTES = 0x8000
_CODE, _TABLES = 0x1000, (0x2000, 0x3000, 0x4000)
_PROGRAM = bytes.fromhex("f30fb8c3 e610 f4")
"""popcnt eax, ebx; out 0x10, al; hlt"""
_OPERAND = 0x5555_00FF


@dataclass(frozen=True)
class Host:
    """Properties of the machine that the configuration is made from."""

    podman: str
    podman_version: str
    runtime: str
    init: str
    cgroup_version: str
    limits: tuple[tuple[str, int, int], ...]
    """(name, soft, hard) limits that a container can have; -1 is unlimited."""
    bridges_pass_filters: bool
    warnings: tuple[str, ...] = ()


def find_host(search_path: str | None = None) -> Host:
    """Return the properties of this machine; `search_path` replaces PATH in tests."""
    if os.geteuid() != 0:
        raise EngineUnavailable("The Podman engine makes networks and mounts and must run as root; use sudo.")
    podman = _program("podman", search_path)
    version = _podman_version(podman)
    cgroup_version = _cgroup_version()
    warnings: list[str] = []
    bridges_pass_filters = Path("/proc/sys/net/bridge/bridge-nf-call-iptables").exists()
    if not bridges_pass_filters:
        warnings.append(
            "Kernel module br_netfilter is not loaded: namespaces are isolated, but traffic between pods on "
            "one bridge cannot be filtered, so that there can be no security groups and no virtual networks. "
            "`modprobe br_netfilter` changes that."
        )
    if not shutil.which("conntrack", path=search_path):
        warnings.append(
            "The program conntrack was not found: when a public address moves to another pod, connections "
            "that are open stay with the old one. Install it with: apt-get install conntrack"
        )
    for program in ("nft", "mount", "umount", "setsid"):
        _program(program, search_path)
    return Host(
        podman=podman,
        podman_version=version,
        runtime=_runtime(cgroup_version, search_path),
        init=_program("catatonit", search_path),
        cgroup_version=cgroup_version,
        limits=_limits(),
        bridges_pass_filters=bridges_pass_filters,
        warnings=tuple(warnings),
    )


def _program(name: str, search_path: str | None) -> str:
    folders = search_path or f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin:/usr/libexec/podman"
    found = shutil.which(name, path=folders)
    if not found:
        raise EngineUnavailable(f"The program {name} was not found; install it with: {_INSTALL}")
    return found


def _podman_version(podman: str) -> str:
    answer = subprocess.run([podman, "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"(\d+)\.(\d+)(\.\d+)?", answer.stdout)
    if answer.returncode or not match:
        raise EngineUnavailable(
            f"{podman} does not work: {(answer.stderr or answer.stdout).strip()}; "
            f"reinstall it with: {_INSTALL}"
        )
    if (int(match[1]), int(match[2])) < OLDEST_PODMAN:
        oldest = ".".join(str(part) for part in OLDEST_PODMAN)
        raise EngineUnavailable(
            f"Podman {match[0]} is too old, {oldest} or newer is needed; Debian 12 and later carry one."
        )
    return match[0]


def _cgroup_version() -> str:
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return "v2"
    return "v1 hybrid" if Path("/sys/fs/cgroup/unified").exists() else "v1"


def _runtime(cgroup_version: str, search_path: str | None) -> str:
    """Return the container runtime; crun refuses hybrid cgroups, so version 1 needs runc."""
    names = ("crun", "runc") if cgroup_version == "v2" else ("runc",)
    for name in names:
        if shutil.which(name, path=search_path):
            return name
    raise EngineUnavailable(
        f"With cgroup {cgroup_version} the container runtime {' or '.join(names)} is needed; "
        f"install it with: {_INSTALL}"
    )


def _limits() -> tuple[tuple[str, int, int], ...]:
    """Return limits for containers: generous ones if we may raise ours, else our own."""
    status = Path("/proc/self/status").read_text()
    effective = int(re.search(r"CapEff:\s*([0-9a-f]+)", status)[1], 16)  # type: ignore[index]
    pid_max = int(Path("/proc/sys/kernel/pid_max").read_text())
    if effective >> _CAP_SYS_RESOURCE & 1:
        return (("nofile", 1048576, 1048576), ("nproc", -1, -1), ("memlock", -1, -1))
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    memory = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    # Podman lowers its own process limit to pid_max, and nothing it starts can go above that again.
    processes = pid_max if processes == resource.RLIM_INFINITY else min(processes, pid_max)
    return (("nofile", files, files), ("nproc", processes, processes), ("memlock", memory, memory))


def resolver_configuration() -> tuple[str, list[str]]:
    """Return the content of the pods' resolv.conf and warnings; pods cannot reach loopback resolvers."""
    for path in _RESOLVERS:
        lines = path.read_text().splitlines() if path.exists() else []
        usable = [line for line in lines if not _is_loopback(line)]
        if any(line.startswith("nameserver") for line in usable):
            return "\n".join(usable) + "\n", []
    return "", ["This machine has no name server that pods could reach; they resolve only each other."]


def _is_loopback(line: str) -> bool:
    fields = line.split()
    if len(fields) < 2 or fields[0] != "nameserver":
        return False
    return ip_address(fields[1].split("%")[0]).is_loopback


@functools.cache
def find_acceleration() -> tuple[str, str]:
    """Return "kvm" or "tcg" and the reason. Tested once: it does not change while a server runs."""
    if platform.machine() != "x86_64":
        return "tcg", f"no check for KVM on {platform.machine()}"
    if not os.path.exists(_DEVICE):
        return "tcg", f"{_DEVICE} is not there"
    try:
        probe = subprocess.run(
            [sys.executable, "-m", __name__],
            capture_output=True,
            text=True,
            timeout=_GUEST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "tcg", f"{_DEVICE} is there, but a test guest did not end within {_GUEST_SECONDS:.0f} s"
    if probe.returncode == 0:
        return "kvm", "a test guest ran"
    reason = (probe.stderr.strip().splitlines() or [f"it ended with code {probe.returncode}"])[-1]
    return "tcg", f"{_DEVICE} is there, but a test guest did not run: {reason}"


def run_guest() -> None:
    """Raise EngineError or OSError unless a guest runs."""
    device = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    machine = fcntl.ioctl(device, _CREATE_VM, 0)
    memory = _memory()
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fcntl.ioctl(machine, _SET_MEMORY, struct.pack("=IIQQQ", 0, 0, 0, _MEMORY_BYTES, address))
    cpu = fcntl.ioctl(machine, _CREATE_VCPU, 0)
    shared = mmap.mmap(cpu, fcntl.ioctl(device, _VCPU_MAP_SIZE, 0))
    _set_processor_features(device, cpu)
    _enter_long_mode(cpu)
    registers = [0] * 18
    registers[1], registers[16], registers[17] = _OPERAND, _CODE, 2  # rbx, rip, rflags
    fcntl.ioctl(cpu, _SET_REGISTERS, struct.pack("=18Q", *registers))
    fcntl.ioctl(cpu, _RUN, 0)
    (reason,) = struct.unpack_from("=I", shared, 8)
    if reason != _EXIT_IO:
        raise EngineError(f"it stopped with exit reason {reason}")
    _, _, port, _, offset = struct.unpack_from("=BBHIQ", shared, 32)
    if port != _PORT or shared[offset] != _OPERAND.bit_count():
        raise EngineError("it computed a wrong result")


def _memory() -> mmap.mmap:
    """Return memory with the code and page tables that map the first 2 MiB identically."""
    memory = mmap.mmap(-1, _MEMORY_BYTES)
    memory[_CODE : _CODE + len(_PROGRAM)] = _PROGRAM
    top, middle, last = _TABLES
    for table, entry in ((top, middle | 3), (middle, last | 3), (last, 0x83)):
        memory[table : table + 8] = struct.pack("=Q", entry)
    return memory


def _set_processor_features(device: int, cpu: int) -> None:
    features = bytearray(struct.pack("=II", _CPUID_ENTRIES, 0) + bytes(40 * _CPUID_ENTRIES))
    fcntl.ioctl(device, _GET_CPUID, features)
    fcntl.ioctl(cpu, _SET_CPUID, features)


def _enter_long_mode(cpu: int) -> None:
    """Set flat 64-bit segments and turn on paging."""
    special = bytearray(312)
    fcntl.ioctl(cpu, _GET_SPECIAL, special)
    code = struct.pack("=QIH8B2x", 0, 0xFFFFFFFF, 0x8, 11, 1, 0, 0, 1, 1, 1, 0)
    data = struct.pack("=QIH8B2x", 0, 0xFFFFFFFF, 0x10, 3, 1, 0, 1, 1, 0, 1, 0)
    special[0:24] = code
    for number in range(1, 6):
        special[24 * number : 24 * number + 24] = data
    controls = 24 * 8 + 16 * 2
    cr0, cr3, cr4, efer = 0x8000_0031, _TABLES[0], 0x20, 0x500
    struct.pack_into("=6Q", special, controls, cr0, 0, cr3, cr4, 0, efer)
    fcntl.ioctl(cpu, _SET_SPECIAL, bytes(special))


if __name__ == "__main__":
    try:
        run_guest()
    except (EngineError, OSError) as error:
        sys.exit(str(error))
