"""Build the contract's descriptor set: the pinned `nebius` package's descriptors plus our own protos.

Run as `python -m neocloud.core.contract.build FILE` in a process of its own, because loading every
published service takes seconds and a quarter of a gigabyte that a server should not keep. Uses the public
registry of the package only; nothing of it is copied into the source tree.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from nebius.base.protos.dynamic import REGISTRY


class ContractBuildError(Exception):
    """Our own protos do not compile; the message holds the output of the compiler."""


def build(proto_root: Path) -> bytes:
    """Return a serialised FileDescriptorSet, files in dependency order."""
    REGISTRY.load_all()
    published = _in_dependency_order(
        FileDescriptorProto.FromString(file.serialized_pb)
        for file in REGISTRY.reflection.files_by_name.values()
    )
    own = _compile(proto_root, FileDescriptorSet(file=published))
    return FileDescriptorSet(file=_in_dependency_order([*published, *own])).SerializeToString()


def _compile(proto_root: Path, imports: FileDescriptorSet) -> list[FileDescriptorProto]:
    sources = sorted(str(path.relative_to(proto_root)) for path in proto_root.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        known = Path(folder, "published.binpb")
        output = Path(folder, "own.binpb")
        known.write_bytes(imports.SerializeToString())
        command = [sys.executable, "-m", "grpc_tools.protoc", f"--descriptor_set_in={known}"]
        command += [f"--proto_path={proto_root}", f"--descriptor_set_out={output}", *sources]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise ContractBuildError(f"The protos in {proto_root} do not compile:\n{run.stderr.strip()}")
        return list(FileDescriptorSet.FromString(output.read_bytes()).file)


def _in_dependency_order(files: Iterable[FileDescriptorProto]) -> list[FileDescriptorProto]:
    by_name = {file.name: file for file in files}
    ordered: dict[str, FileDescriptorProto] = {}

    def visit(name: str) -> None:
        if name in ordered:
            return
        for dependency in by_name[name].dependency:
            visit(dependency)
        ordered[name] = by_name[name]

    for name in sorted(by_name):
        visit(name)
    return list(ordered.values())


def main(arguments: list[str]) -> int:
    proto_root, output = arguments
    try:
        Path(output).write_bytes(build(Path(proto_root)))
    except ContractBuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
