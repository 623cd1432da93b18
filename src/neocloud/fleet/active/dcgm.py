"""DCGM's own diagnostics: `dcgmi diag -r 3 -j`, of which the failed tests count.

The formats of DCGM 3 and 4 were taken from real output: see the test.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from neocloud.core.json_values import as_list, as_object, is_object
from neocloud.fleet.agent.probe_result import ProbeResult

LEVEL = "3"
CHECK = "dcgm_diag"
ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
"""Names of DCGM 4 and 3."""
CONFIGURATION = 5
"""Severity of what is a setting of the host, such as persistence mode; dcgm_errors.h of DCGM."""
MOST_BYTES = 4 << 20


def dcgm_diag(folder: Path) -> ProbeResult:
    """Run the diagnostics. Raises ValueError and OSError."""
    found = ProbeResult()
    if (program := shutil.which("dcgmi")) is None:
        found.leave_out("dcgmi is not installed; it comes with DCGM", CHECK)
        return found
    output = folder / "dcgm"
    with output.open("wb") as file:
        subprocess.run([program, "diag", "-r", LEVEL, "-j"], stdout=file, stderr=file, check=False)
    with output.open("rb") as file:
        failed, passed, notes = read(file.read(MOST_BYTES))
    note = "; ".join([*failed, *notes, f"{passed} passed"])
    found.read(CHECK, "", len(failed), note, unit="failed tests")
    return found


def read(output: bytes) -> tuple[list[str], int, list[str]]:
    """Return the failed tests, how many passed, and what is wrong with the settings of the host. Raises
    ValueError where it says of no test that it passed or failed."""
    text = output.decode(errors="replace")
    try:
        given, _ = json.JSONDecoder().raw_decode(text, max(text.find("{"), 0))  # warnings may come before it
    except (ValueError, RecursionError):
        raise ValueError(f"dcgmi printed no JSON: {text.strip()[:200] or 'nothing'}") from None
    failed, settings, passed = list[str](), list[str](), 0
    for name, result in _results(given):
        status = str(result.get("status", "")).lower()
        severities = [as_object(each).get("error_severity") for each in as_list(result.get("warnings"))]
        device = result.get("entity_id", result.get("gpu_ids", ""))
        if status == "pass":
            passed += 1
        elif status == "fail" and severities and all(each == CONFIGURATION for each in severities):
            settings.append(f"{name} of {device}: a setting of the host")
        elif status == "fail":
            failed.append(f"{name} of {device}")
    if not failed and not passed:
        raise ValueError("; ".join(settings[:3]) or "dcgmi says of no test that it passed or failed")
    return failed, passed, settings


def _results(given: object) -> Iterator[tuple[str, dict[str, object]]]:
    for root in (as_object(given).get(each) for each in ROOTS):
        for category in as_list(as_object(root).get("test_categories")):
            for test in filter(is_object, as_list(as_object(category).get("tests"))):  # some are null
                for result in filter(is_object, as_list(test.get("results"))):
                    yield str(test.get("name", ""))[:80], result
