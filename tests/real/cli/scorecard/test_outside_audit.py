"""Audit a host by an outside judge: `cmax audit --standalone` of ClusterMAX, unmodified.

It reads and changes nothing. What it says of GPUs and of programs that this host may lack is not judged.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from neocloud.cli.scorecard.scorecard import Score, read_report
from tests import ROOT
from tests.clients import CLIENTS

CLIENT = CLIENTS / "clustermax" / "bin"
VERDICTS = """
import json, pathlib
from cmax import audit_report, security

(folder,) = (pathlib.Path.home() / ".clustermax" / "audit").iterdir()
values = json.loads((folder / "audit.values.json").read_text())
checks = audit_report.evaluate(values, security.find_runtime_root())
print(json.dumps({check.key: check.status for check in checks}))
"""
MUST_PASS = {"access.userManagement", "bmc-ipmi", "containers.workerCheckOk"}
"""Checks that a host without GPUs, fabric and Slurm can pass, whatever is installed on it."""


def test_the_audit_of_a_host_completes_and_the_scorecard_agrees(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHON": sys.executable}
    install = [ROOT / "scripts" / "install-client", "clustermax"]
    subprocess.run(install, env=environment, check=True, capture_output=True, timeout=300)
    command = [CLIENT / "cmax", "audit", "--standalone", "-y", "-vvv"]
    done = subprocess.run(
        command, env=environment, check=False, capture_output=True, text=True, timeout=240, cwd=tmp_path
    )
    assert done.returncode == 0 and "audit incomplete" not in done.stdout, done.stdout + done.stderr
    assert re.search(r"^\d+ failed, \d+ warnings?, \d+ passed, \d+ skipped$", done.stdout, re.MULTILINE)
    judge = [CLIENT / "python", "-c", VERDICTS]
    said = subprocess.run(judge, env=environment, check=True, capture_output=True, text=True, timeout=60)
    verdicts: dict[str, str] = json.loads(said.stdout)
    assert {check for check, status in verdicts.items() if status == "pass"} >= MUST_PASS, done.stdout
    found = read_report(done.stdout, None)
    assert {each.harness for each in found} == {"standalone"}
    read = {each.check: each.score for each in found}
    for status, score in (("pass", Score.PASS), ("warning", Score.PARTIAL), ("fail", Score.FAIL)):
        ours = {check for check, each in read.items() if each is score}
        assert ours == {check for check, each in verdicts.items() if each == status}, status
