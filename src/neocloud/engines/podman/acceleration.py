"""Whether this machine can run the code of a guest on its processor (kvm), or only emulate it (tcg).

That /dev/kvm is there says little: nested in another machine it may exist and still fail with every ordinary
guest. So a tiny guest is run: 64-bit code with page tables, and one instruction that processors know and the
emulator inside KVM does not. It runs in a process of its own with a time limit; nothing outlives it.

    python -m neocloud.engines.podman.acceleration
"""

import ctypes
import fcntl
import functools
import mmap
import os
import platform
import struct
import subprocess
import sys

from neocloud.engines.base import EngineError

_SECONDS = 5.0
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


@functools.cache
def find_acceleration() -> tuple[str, str]:
    """("kvm" or "tcg", why). Asked once: it does not change while a server runs."""
    if platform.machine() != "x86_64":
        return "tcg", f"no check for KVM on {platform.machine()}"
    if not os.path.exists(_DEVICE):
        return "tcg", f"{_DEVICE} is not there"
    try:
        probe = subprocess.run(
            [sys.executable, "-m", __name__], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "tcg", f"{_DEVICE} is there, but a test guest did not end within {_SECONDS:.0f} s"
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
    _give_processor_features(device, cpu)
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
    """Code, and page tables that map the first 2 MiB onto themselves."""
    memory = mmap.mmap(-1, _MEMORY_BYTES)
    memory[_CODE : _CODE + len(_PROGRAM)] = _PROGRAM
    top, middle, last = _TABLES
    for table, entry in ((top, middle | 3), (middle, last | 3), (last, 0x83)):
        memory[table : table + 8] = struct.pack("=Q", entry)
    return memory


def _give_processor_features(device: int, cpu: int) -> None:
    features = bytearray(struct.pack("=II", _CPUID_ENTRIES, 0) + bytes(40 * _CPUID_ENTRIES))
    fcntl.ioctl(device, _GET_CPUID, features)
    fcntl.ioctl(cpu, _SET_CPUID, features)


def _enter_long_mode(cpu: int) -> None:
    """Flat 64-bit code and data, paging on."""
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
