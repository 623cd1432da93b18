"""What the container is to be: its image, words, variables, ports and files. Pure."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any

from neocloud.core.kind import Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.writing import refuse_while_writing
from neocloud.services.ai.resources import KnownImages

MOST_FILE_BYTES = 1024 * 1024
"""Of all injected files together."""
FILE_REQUEST_BYTES = MOST_FILE_BYTES * 3 // 2
"""What a request may hold beyond others for them: in JSON they are Base64, a third longer."""
_SYSTEM = (PurePosixPath("/proc"), PurePosixPath("/sys"), PurePosixPath("/dev"))


def words(text: str) -> Sequence[str]:
    """As a shell would cut them; no shell ever sees them. Raises ValueError."""
    refuse_while_writing("Cutting a command into words")
    return shlex.split(text)


def word_violations(spec: Any) -> Iterable[Violation]:
    for field in ("container_command", "args"):
        try:
            words(getattr(spec, field))
        except ValueError as error:
            yield Violation(f"spec.{field}", f"cannot be cut into words: {error}; close every quote")


def container_violations(spec: Any, reader: ResourceReader) -> Iterable[Violation]:
    yield from _image(spec.image, reader)
    if spec.working_dir and not spec.working_dir.startswith("/"):
        yield Violation("spec.working_dir", "must be an absolute path")
    yield from _variables(spec)
    yield from _ports(spec)
    yield from _paths(spec)


def _image(image: str, reader: ResourceReader) -> Iterable[Violation]:
    known = reader.provided.find(KnownImages)
    names = known() if known else None
    if names is not None and image not in names:
        there = ", ".join(names) or "none yet"
        yield Violation(
            "spec.image",
            f"{image!r} is not on this machine, and nothing is pulled; there are: {there}. "
            "`neo image build` makes those that come along",
        )


def _variables(spec: Any) -> Iterable[Violation]:
    seen: set[str] = set()
    for index, variable in enumerate(spec.environment_variables):
        if not variable.name or "=" in variable.name or "\0" in variable.name + variable.value:
            yield Violation(f"spec.environment_variables[{index}].name", "must be a name without '='")
        elif variable.name in seen:
            yield Violation(f"spec.environment_variables[{index}].name", "is given twice; give it once")
        seen.add(variable.name)


def _ports(spec: Any) -> Iterable[Violation]:
    seen: set[tuple[int, bool]] = set()
    for index, port in enumerate(spec.ports):
        field, number = f"spec.ports[{index}]", port.container_port
        key = (number, is_udp(port))
        if port.host_port not in (0, number):
            yield Violation(f"{field}.host_port", "it has an address of its own; leave this out")
        elif key in seen:
            yield Violation(f"{field}.container_port", "is given twice; give it once")
        seen.add(key)


def is_udp(port: Any) -> bool:
    return port.Protocol.Name(port.protocol) == "UDP"


def _paths(spec: Any) -> Iterable[Violation]:
    taken: set[PurePosixPath] = set()
    mounts = [(f"spec.volumes[{index}]", each) for index, each in enumerate(spec.volumes)]
    files = [(f"spec.injected_files[{index}]", each) for index, each in enumerate(spec.injected_files)]
    for field, each in (*mounts, *files):
        path = PurePosixPath(each.container_path)
        if not path.is_absolute() or ".." in path.parts or len(path.parts) < 2:
            yield Violation(f"{field}.container_path", "must be an absolute path below /, without '..'")
        elif any(path == root or root in path.parents for root in _SYSTEM):
            yield Violation(f"{field}.container_path", "lies where the system keeps its own; choose another")
        elif path in taken:
            yield Violation(f"{field}.container_path", "is given twice; give it once")
        taken.add(path)
    for field, each in mounts:
        if ".." in PurePosixPath(each.source_path).parts:
            yield Violation(f"{field}.source_path", "must stay inside the filesystem, without '..'")
    if sum(len(each.content) for _, each in files) > MOST_FILE_BYTES:
        yield Violation("spec.injected_files", f"may hold {MOST_FILE_BYTES} bytes together; use a filesystem")
