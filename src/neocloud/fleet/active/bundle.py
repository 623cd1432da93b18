"""The checks as one archive, which a bare Python 3.11 takes from its standard input and keeps in memory.

python3.11 -I -c "$LOADER" run --suite quick < archive

No file of it lies on the node, where root of a cluster could replace it.
"""

import io
import zipfile
from functools import cache
from pathlib import Path

import neocloud
from neocloud.fleet.active.catalogue import FILE

MODULES = (
    "core/json_values.py",
    *("fleet/policy/actions.py", "fleet/nodes/events.py", "fleet/nodes/gpu_use.py", "fleet/nodes/parts.py"),
    *(f"fleet/agent/{name}.py" for name in ("child", "document", "host_files", "probe_result")),
)
NOT_PACKED = frozenset({"bundle.py", "cohort.py", "pairing.py", "schedule.py"})
"""For the control plane alone."""
GOLDEN_LOSSES = "golden.json"
TOKEN = "token"
"""The shared secret of both nodes of a pair. It comes with the archive: arguments of a process are seen by
all users.
"""
_DATE = (1980, 1, 1, 0, 0, 0)
LOADER = (
    "import os, sys; f = os.memfd_create('checks'); d = sys.stdin.buffer.read(); "
    "os.write(f, d); sys.path.insert(0, f'/proc/self/fd/{f}'); "
    "from neocloud.fleet.active.__main__ import main; sys.exit(main(sys.argv[1:]))"
)


def archive(token: str = "") -> bytes:
    """Return the archive, with the token of a pair. The same release and token make the same bytes."""
    if not token:
        return _archive()
    target = io.BytesIO(_archive())
    with zipfile.ZipFile(target, "a") as made:
        made.writestr(zipfile.ZipInfo(f"neocloud/fleet/active/{TOKEN}", _DATE), token)
    return target.getvalue()


@cache
def _archive() -> bytes:
    root = Path(neocloud.__file__).parent
    own = sorted((root / "fleet/active").glob("*.py"))
    sources = [root / each for each in MODULES] + [each for each in own if each.name not in NOT_PACKED]
    entries = {f"neocloud/{each.relative_to(root)}": each.read_bytes() for each in sources}
    for folder in ("", "core/", "fleet/", "fleet/agent/", "fleet/nodes/", "fleet/policy/"):
        entries[f"neocloud/{folder}__init__.py"] = b""
    for name in (FILE, GOLDEN_LOSSES):
        entries[f"neocloud/fleet/active/{name}"] = (root / "fleet/active" / name).read_bytes()
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in sorted(entries.items()):
            made.writestr(zipfile.ZipInfo(name, _DATE), content, zipfile.ZIP_DEFLATED)
    return target.getvalue()
