"""Runs as root of a tenant inside a Slurm cluster and tries to leave. Standard library of Python 3.11 only.

Prints a JSON list of what went through; an empty list is the right result. Nothing of the machine is ever
written: what could be opened for writing is closed again at once and reported.
"""

import ctypes
import errno
import json
import mmap
import os
import platform
import socket
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)

KEPT = {0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 29, 31}
"""Capabilities that a tenant's root may have: numbers of linux/capability.h."""
MOUNTS = [("proc", b"proc"), ("sysfs", b"sysfs"), ("cgroup", b"cgroup"), ("cgroup2", b"cgroup2")]
MOUNTS += [("tmpfs", b"tmpfs"), ("devtmpfs", b"devtmpfs"), ("debugfs", b"debugfs"), ("bind", None)]
NAMESPACES = {
    "mount": 0x20000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "time": 0x80,
    "user and mount": 0x10020000,
}
SYSCALLS = {
    "open_tree": (428, -100, b"/", 1),
    "move_mount": (429, -100, b"/tmp", -100, b"/mnt", 0),
    "fsopen": (430, b"proc", 0),
    "fspick": (433, -100, b"/", 0),
    "mount_setattr": (442, -100, b"/", 0, 0, 0),
    "pivot_root": (155, b".", b"."),
    "bpf": (321, 0, 0, 0),
    "open_by_handle_at": (304, -100, 0, 0),
    "init_module": (175, 0, 0, b""),
    "iopl": (172, 3),
    "keyctl": (250, 0, -4, 0),
    "syslog": (103, 10, 0, 0),
}
WRITABLE_BY_NOBODY = (
    *("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/poweroff_cmd"),
    *("/proc/sys/kernel/hotplug", "/proc/sys/vm/overcommit_memory", "/proc/sys/fs/suid_dumpable"),
    *("/proc/sys/fs/binfmt_misc/register", "/proc/sysrq-trigger", "/proc/irq/default_smp_affinity"),
    *("/proc/acpi/wakeup", "/proc/scsi/scsi", "/proc/kcore", "/proc/mtrr", "/proc/timer_list"),
    *("/sys/kernel/uevent_helper", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/power/state"),
)
FOREIGN_USERS = {"slurm": 64030, "nobody": 65534, "mysql": 64031, "sshd": 101, "sshd (other)": 100}
DAEMONS_FILES = ("etc/slurm/slurm.key", "usr/local/sbin/neocloud-entrypoint")


def attempts() -> Iterator[str]:
    yield from capabilities()
    yield from root_directories()
    yield from mounts()
    yield from namespaces()
    yield from system_calls()
    yield from machine_files()
    yield from devices()
    yield from open_files()
    yield from processes("root")
    for name, number in FOREIGN_USERS.items():
        yield from as_user(number, lambda name=name: processes(name))


def capabilities() -> Iterator[str]:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        held = int(status[kind], 16)
        more = [number for number in range(64) if held >> number & 1 and number not in KEPT]
        if more:
            yield f"{kind} holds capabilities {more}"
    if status["Seccomp"].strip() != "2":
        yield "no system call is filtered"


def root_directories() -> Iterator[str]:
    folder = Path("/tmp/escape-root")
    folder.mkdir(exist_ok=True)
    outside = os.open("/", os.O_RDONLY)
    try:
        os.chroot(folder)
    except PermissionError:
        os.close(outside)
        return
    os.fchdir(outside)
    for _ in range(64):
        os.chdir("..")
    os.chroot(".")
    found = [name for name in DAEMONS_FILES if Path("/", name).exists()]
    yield f"chroot works and leads to {found or 'a root of its own'}"


def mounts() -> Iterator[str]:
    target = b"/tmp/escape-mount"
    Path(target.decode()).mkdir(exist_ok=True)
    for name, kind in MOUNTS:
        flags = 0 if kind else 0x1000
        if libc.mount(b"/" if kind is None else name.encode(), target, kind, flags, None) == 0:
            libc.umount2(target, 2)
            yield f"a fresh {name} can be mounted"
    for path in ("/proc/sys", "/sys", "/opt/slurm", "/"):
        if libc.mount(None, path.encode(), None, 0x1020, None) == 0:
            yield f"{path} can be mounted again, writable"
        elif ctypes.get_errno() not in (errno.EPERM, errno.EACCES):
            yield f"remounting {path} failed for another reason: {os.strerror(ctypes.get_errno())}"
    if libc.umount2(b"/opt/slurm", 2) == 0:
        yield "/opt/slurm can be unmounted"


def namespaces() -> Iterator[str]:
    for name, flag in NAMESPACES.items():
        if in_child(lambda flag=flag: libc.unshare(flag) == 0):
            yield f"a {name} namespace can be made with unshare"
        if flag != 0x80 and in_child(lambda flag=flag: clone_works(flag)):
            yield f"a {name} namespace can be made with clone"
    arguments = struct.pack("11Q", 0x10000000, *[0] * 10)
    if libc.syscall(435, arguments, len(arguments)) != -1 or ctypes.get_errno() != errno.ENOSYS:
        yield "clone3 is not refused"
    for name in ("mnt", "user", "pid"):
        try:
            fd = os.open(f"/proc/1/ns/{name}", os.O_RDONLY)
        except PermissionError:
            continue
        if libc.setns(fd, 0) == 0:
            yield f"the {name} namespace of process 1 can be entered"


def clone_works(flags: int) -> bool:
    child = libc.syscall(56, flags | 17, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    if child > 0:
        os.waitpid(child, 0)
    return child > 0


def system_calls() -> Iterator[str]:
    for name, (number, *arguments) in SYSCALLS.items():
        said = libc.syscall(number, *arguments)
        if said != -1 or ctypes.get_errno() != errno.EPERM:
            yield f"{name} is not refused ({said}, {os.strerror(ctypes.get_errno())})"
    if platform.machine() == "x86_64" and in_child(other_interface_works):
        yield "calls by the numbers of 32-bit programs are not refused"


def other_interface_works() -> bool:
    """getpid by `int 0x80`: what a filter that knows one set of numbers only lets through."""
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20; int 0x80; ret
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    return function() == os.getpid()


def machine_files() -> Iterator[str]:
    paths = [Path(path) for path in WRITABLE_BY_NOBODY]
    for top in ("/sys/fs/cgroup", "/sys/fs/bpf", "/sys/kernel/debug", "/sys/module", "/proc/sys"):
        for folder, _, files in os.walk(top):
            paths += [Path(folder, name) for name in files]
    for path in paths:
        if path.exists() and (reached := opens_for_writing(path)):
            yield reached


def opens_for_writing(path: Path) -> str:
    try:
        if stat.S_ISCHR(path.stat().st_mode):
            return ""  # /dev/null laid over a file of the machine
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return ""
    return f"{path} opens for writing"


def devices() -> Iterator[str]:
    for kind, major, minor in ((stat.S_IFBLK, 254, 0), (stat.S_IFBLK, 8, 0), (stat.S_IFCHR, 1, 1)):
        path = f"/tmp/escape-device-{major}-{minor}"
        try:
            os.mknod(path, kind | 0o600, os.makedev(major, minor))
        except PermissionError:
            continue
        os.unlink(path)
        yield f"device {major}:{minor} can be made"
    for path in Path("/dev").rglob("*"):
        if path.is_block_device() or path.name in ("mem", "kmem", "port", "kmsg", "fuse"):
            yield f"{path} is here"


def open_files() -> Iterator[str]:
    """Folders that this process inherited: `..` from them would lead out."""
    for fd in range(3, 1024):
        try:
            mode = os.fstat(fd).st_mode
        except OSError:
            continue
        path = os.readlink(f"/proc/self/fd/{fd}")
        if stat.S_ISDIR(mode) or stat.S_ISBLK(mode) or path.startswith("/proc/sys"):
            yield f"file {fd} was inherited: {path}"


def processes(user: str) -> Iterator[str]:
    own = os.stat("/")
    for number in sorted(int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
        if number == os.getpid():
            continue
        root = f"/proc/{number}/root"
        try:
            there = os.stat(f"{root}/.")
        except OSError:
            continue  # gone, or refused
        if (there.st_dev, there.st_ino) != (own.st_dev, own.st_ino):
            name = Path(f"/proc/{number}/comm").read_text().strip()
            yield f"{user} sees the root directory of {name}: {os.listdir(root)}"
            if libc.ptrace(0x4206, number, 0, 0) == 0:
                yield f"{user} can trace {name}"


def as_user(number: int, attack: Callable[[], Iterator[str]]) -> Iterator[str]:
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            os.setresgid(number, number, number)
            os.setgroups([])
            os.setresuid(number, number, number)
            theirs.sendall(json.dumps(list(attack())).encode())
        finally:
            os._exit(0)
    theirs.close()
    said = b"".join(iter(lambda: ours.recv(65536), b""))
    os.waitpid(child, 0)
    yield from json.loads(said)


def in_child(attack: Callable[[], bool]) -> bool:
    child = os.fork()
    if child == 0:
        os._exit(17 if attack() else 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17


if __name__ == "__main__":
    json.dump(list(attempts()), sys.stdout)
