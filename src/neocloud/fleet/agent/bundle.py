"""The agent as one file that a bare Python 3.11 runs: modules, fault policy, and NVML's bindings.

python3.11 agent.pyz check
"""

import importlib.util
import sys
import zipfile
from pathlib import Path

import neocloud
from neocloud.core.osfiles import write_file
from neocloud.fleet.agent.policy_json import FILE, to_json
from neocloud.fleet.policy.policy_file import default_policy

MODULES = (
    *("core/json_values.py", "core/osfiles.py", "fleet/nodes/events.py", "fleet/nodes/parts.py"),
    *("fleet/policy/actions.py", "fleet/policy/policy.py"),
    *("fleet/policy/kernel_log.py", "fleet/policy/kernel_log_line.py", "fleet/policy/kernel_log_reader.py"),
    *("fleet/policy/kernel_log_summary.py", "fleet/policy/nvlink.py", "fleet/nodes/gpu_use.py"),
)
"""Beside the agent's own, without a folder's `__init__.py`, which is empty in the archive."""
NOT_PACKED = frozenset({"bundle.py"})
START = "import sys\nfrom neocloud.fleet.agent.__main__ import main\nsys.exit(main())\n"
_DATE = (1980, 1, 1, 0, 0, 0)
"""Date of each entry, so that the same release makes the same file."""


def write_bundle(path: Path) -> None:
    """Write the archive. Raises OSError."""
    root = Path(neocloud.__file__).parent
    own = sorted((root / "fleet/agent").rglob("*.py"))
    sources = [root / each for each in MODULES] + [each for each in own if each.name not in NOT_PACKED]
    entries = {f"neocloud/{each.relative_to(root)}": each.read_bytes() for each in sources}
    for folder in ("", "core/", "fleet/", "fleet/policy/", "fleet/nodes/"):
        entries[f"neocloud/{folder}__init__.py"] = b""
    entries[f"neocloud/fleet/agent/{FILE}"] = to_json(default_policy()).encode()
    entries["__main__.py"] = START.encode()
    if (bindings := _nvml_bindings()) is not None:
        entries["pynvml.py"] = bindings.read_bytes()
    draft = path.with_name(f".{path.name}.draft")
    try:
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in sorted(entries.items()):
                archive.writestr(zipfile.ZipInfo(name, _DATE), content, zipfile.ZIP_DEFLATED)
        write_file(path, b"#!/usr/bin/env python3\n" + draft.read_bytes(), 0o755, durable=True)
    finally:
        draft.unlink(missing_ok=True)


def _nvml_bindings() -> Path | None:
    found = importlib.util.find_spec("pynvml")
    return Path(found.origin) if found and found.origin else None


if __name__ == "__main__":
    write_bundle(Path(sys.argv[1]))
