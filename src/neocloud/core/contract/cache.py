"""Keep the built descriptor set in a file, so that a start costs milliseconds instead of seconds.

The file's name is a hash of everything that goes into it, so a changed proto or another release of a package
never meets a stale file. Files are written beside and renamed into place; builders that start together wait
for one another. A folder that cannot be written only costs time on each start.
"""

import hashlib
import subprocess
import sys
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path

import platformdirs

from neocloud.core.osfiles import locked, write_file

FORMAT = "1"
PACKAGE_ROOT = Path(__file__).resolve().parents[2]


class ContractUnavailable(Exception):
    """The descriptor set could not be built; nothing can run without it."""


def proto_root() -> Path:
    """Return the folder of our own protos: inside an installed package, or beside `src` in a checkout."""
    for candidate in (PACKAGE_ROOT / "proto", PACKAGE_ROOT.parents[1] / "proto"):
        if (candidate / "neocloud").is_dir():
            return candidate
    raise ContractUnavailable(
        f"No proto folder in {PACKAGE_ROOT} or beside it. "
        "Install the package again, or run from a full checkout."
    )


@cache
def cache_path() -> Path:
    """Return the path of the descriptor set of this combination of packages and protos."""
    digest = hashlib.sha256()
    for part in (FORMAT, version("nebius"), version("grpcio-tools")):
        digest.update(part.encode() + b"\0")
    root = proto_root()
    for source in sorted(root.rglob("*.proto")):
        digest.update(str(source.relative_to(root)).encode() + b"\0" + source.read_bytes() + b"\0")
    folder = platformdirs.user_cache_path("neocloud", appauthor=False)
    return folder / f"contract-{digest.hexdigest()[:24]}.binpb"


def descriptor_set(path: Path | None = None) -> bytes:
    """Return the serialised descriptor set, from the cache or built now."""
    path = path or cache_path()
    try:
        return path.read_bytes()
    except FileNotFoundError:
        pass
    except OSError:
        return _build_in_own_process()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.parent / "build.lock", wait=True):
            if path.exists():
                return path.read_bytes()
            content = _build_in_own_process()
            write_file(path, content)
            return content
    except OSError:
        return _build_in_own_process()


def _build_in_own_process() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "contract.binpb")
        command = [sys.executable, "-m", f"{__package__}.build", str(proto_root()), str(output)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            printed = run.stderr.strip()[-2000:]
            raise ContractUnavailable(
                "Building the API contract failed. "
                f"Check that nebius and grpcio-tools are installed.\n{printed}"
            )
        return output.read_bytes()
