"""The few programs that containers of the fake engine can run.

Enough for the conformance suite and for tests of services: reading and writing files through mounts,
connecting to peers, ending. It never starts a process and touches no real file.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from neocloud.engines.base import MAX_LINE_BYTES, ExecResult, Reference
from neocloud.engines.fake.world import FakeContainer, FakePod, FakeWorld, Files
from neocloud.engines.manifest import ATTACHED_VOLUME, ConfigMap, Secret, VolumeClaim

NOT_FOUND = 127


@dataclass(frozen=True)
class Process:
    """The surroundings of a program: its world, pod and container."""

    world: FakeWorld
    pod: FakePod
    container: FakeContainer
    kill: Callable[[int], None]
    """Ends the container's first process with this exit code."""


class StillRunning(Exception):
    """The program does not end by itself."""


def log_lines(output: bytes) -> list[str]:
    """Lines as a container's log has them: long ones are split."""
    return [
        line[at : at + MAX_LINE_BYTES].decode(errors="replace")
        for line in output.splitlines()
        for at in range(0, len(line) or 1, MAX_LINE_BYTES)
    ]


def run(process: Process, command: Sequence[str], stdin: bytes = b"") -> ExecResult:
    """Run to the end; StillRunning for a server or a sleeper."""
    name, *arguments = command
    program = _PROGRAMS.get(name)
    if program is None:
        return ExecResult(NOT_FOUND, b"", f"{name}: not found\n".encode())
    return program(process, arguments, stdin)


def _sh(process: Process, arguments: list[str], stdin: bytes) -> ExecResult:
    """`sh -c` with plain statements between semicolons."""
    out, err, code = b"", b"", 0
    for statement in arguments[1].split(";"):
        words = statement.split()
        if words and words[0] == "exit":
            return ExecResult(int(words[1]), out, err)
        to_stderr = words[-1:] == [">&2"]
        words = [word for word in words if word not in ("exec", ">&2")]
        try:
            result = run(process, words, stdin)
        except StillRunning:
            process.container.logs += log_lines(out + err)
            raise
        out += b"" if to_stderr else result.stdout
        err += result.stderr + (result.stdout if to_stderr else b"")
        code = result.exit_code
    return ExecResult(code, out, err)


def _cat(process: Process, arguments: list[str], stdin: bytes) -> ExecResult:
    if not arguments:
        return ExecResult(0, stdin, b"")
    content = _read(process, arguments[0])
    if content is None:
        return ExecResult(1, b"", f"cat: {arguments[0]}: No such file or directory\n".encode())
    return ExecResult(0, content, b"")


def _tee(process: Process, arguments: list[str], stdin: bytes) -> ExecResult:
    files, path = _place(process, arguments[0])
    others = sum(len(content) for name, content in files.items() if name != path)
    free = _capacity(process, files) - others
    files[path] = stdin[: max(free, 0)]
    process.world.save()
    if len(stdin) > free:
        return ExecResult(1, stdin, f"tee: {arguments[0]}: I/O error\n".encode())
    return ExecResult(0, stdin, b"")


def _capacity(process: Process, files: Files) -> int:
    """Return how many bytes these files may have: a filesystem has a size, and a container's disk may."""
    if files is process.container.files:
        return process.container.manifest.disk_bytes or sys.maxsize
    for claim, found in process.world.volumes.items():
        manifest = process.world.objects.get(claim)
        if found is files and isinstance(manifest, VolumeClaim) and manifest.is_filesystem:
            return manifest.size_bytes
    return sys.maxsize


def _touch(process: Process, arguments: list[str], stdin: bytes) -> ExecResult:
    return _tee(process, arguments, _read(process, arguments[0]) or b"")


def _echo(process: Process, arguments: list[str], stdin: bytes) -> ExecResult:
    return ExecResult(0, (" ".join(arguments) + "\n").encode(), b"")


def _sleep(process: Process, arguments: list[str], stdin: bytes) -> ExecResult:
    raise StillRunning


def _httpd(process: Process, arguments: list[str], stdin: bytes) -> ExecResult:
    process.container.ports.add(int(arguments[arguments.index("-p") + 1]))
    raise StillRunning


def _kill(process: Process, arguments: list[str], stdin: bytes) -> ExecResult:
    signal = {"-TERM": 15, "-KILL": 9}.get(arguments[0], 15)
    process.kill(128 + signal)
    return ExecResult(0, b"", b"")


def _nc(process: Process, arguments: list[str], stdin: bytes) -> ExecResult:
    host, port = arguments[-2:]
    return ExecResult(0 if _is_reachable(process, host, int(port)) else 1, b"", b"")


def _is_reachable(process: Process, host: str, port: int) -> bool:
    names = (line.split() for line in process.world.hosts_of(process.pod).splitlines())
    address = next((words[0] for words in names if host in words), host)
    for service in process.world.services_for(process.pod):
        if (str(service.address), service.port) == (address, port):
            return process.world.may_use(process.pod, service)
    return any(
        pod.ip == address and container.is_running and port in container.ports
        for pod in process.world.neighbours(process.pod)
        if process.world.may_connect(process.pod, pod, port)
        for container in pod.containers
    )


def _read(process: Process, path: str) -> bytes | None:
    if path == "/etc/hosts":
        return process.world.hosts_of(process.pod).encode()
    files, inner = _place(process, path)
    return files.get(inner)


def _place(process: Process, path: str) -> tuple[Files, str]:
    """The files a path belongs to, and its name among them."""
    for mount in process.container.manifest.volume_mounts:
        prefix = mount.mount_path.rstrip("/") + "/"
        if path.startswith(prefix):
            inner = path.removeprefix(prefix)
            if mount.sub_path:
                inner = f"{mount.sub_path}/{inner}"
            if mount.name == ATTACHED_VOLUME:
                return _attached(process, inner)
            return _volume(process, mount.name), inner
    return process.container.files, path


def _attached(process: Process, path: str) -> tuple[Files, str]:
    name, _, inner = path.partition("/")
    pod = process.pod.manifest
    claims = [pod.attached_claim(source) for source in pod.attached if source.claim_name == name]
    return (process.world.volumes.setdefault(claims[0], {}) if claims else {}), inner


def _volume(process: Process, name: str) -> Files:
    pod = process.pod.manifest
    volume = pod.volume(name)
    if claim := pod.claim_of(volume):
        return process.world.volumes.setdefault(claim, {})
    for kind, source in (("ConfigMap", volume.config_map), ("Secret", volume.secret)):
        if source:
            found = process.world.objects[Reference(kind, pod.namespace, source.name)]
            assert isinstance(found, ConfigMap | Secret)
            return dict(found.contents)
    return process.pod.scratch.setdefault(name, {})


_PROGRAMS: dict[str, Callable[[Process, list[str], bytes], ExecResult]] = {
    "sh": _sh,
    "cat": _cat,
    "tee": _tee,
    "touch": _touch,
    "echo": _echo,
    "true": lambda process, arguments, stdin: ExecResult(0, b"", b""),
    "false": lambda process, arguments, stdin: ExecResult(1, b"", b""),
    "sleep": _sleep,
    "httpd": _httpd,
    "kill": _kill,
    "nc": _nc,
}
