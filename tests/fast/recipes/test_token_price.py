"""The demo's price of a token, from the price of a machine and its measured speed."""

import json
import subprocess
import sys
from pathlib import Path

from tests import ROOT

SCRIPT = ROOT / "runs" / "token_price.py"
BILL = {
    "lines": [
        {"sku": "cpu-local.vcpu", "unit_price": "0.012"},
        {"sku": "cpu-local.ram", "unit_price": "0.0032"},
        {"sku": "gpu-local.gpu", "unit_price": ""},
    ]
}


def price(folder: Path, bill: object, preset: str = "2vcpu-4gb") -> "subprocess.CompletedProcess[str]":
    speed = {
        "serving": [
            {"scenario": "bank, 1 at a time", "tokens_per_second": "40.0"},
            {"scenario": "bank, 16 at a time", "tokens_per_second": "100.0"},
        ]
    }
    deployment = {"spec": {"platform": "cpu-local", "preset": preset}}
    files = [folder / name for name in ("speed.json", "deployment.json", "bill.json")]
    for file, content in zip(files, (speed, deployment, bill), strict=True):
        file.write_text(json.dumps(content))
    return subprocess.run(
        [sys.executable, SCRIPT, *files], capture_output=True, text=True, check=False, timeout=60
    )


def test_a_token_costs_what_the_machine_costs_while_it_is_written(tmp_path: Path) -> None:
    """2 x 0.012 + 4 x 0.0032 = 0.0368 dollars an hour, in which 360,000 tokens are written."""
    assert price(tmp_path, BILL).stdout == "0.0341/0.1022\n"


def test_what_has_no_price_is_named(tmp_path: Path) -> None:
    said = price(tmp_path, {"lines": BILL["lines"][:1]})
    assert said.returncode == 1 and "no price of cpu-local.ram" in said.stderr
    said = price(tmp_path, BILL, "1gpu-16vcpu-200gb")
    assert said.returncode == 1 and "1gpu-16vcpu-200gb" in said.stderr


def test_the_demos_model_has_a_price_before_its_first_token() -> None:
    """Tokens of the measurement stay in the bill, and without a price the bill has a line that says so."""
    lines = (SCRIPT.parent / "bank.sh").read_text().splitlines()
    deploys = [line for line in lines if "neo deploy " in line]
    assert deploys and all("--price 0" in line for line in deploys)
