#!/usr/bin/env python3
"""Print the price of a model's tokens from its measured speed and the price of its machine.

    neo tco --measure MODEL --output json > speed.json
    neo deployment get NAME --output json > deployment.json
    neo billing report --output json > bill.json
    neo deployment price NAME "$(python3 runs/token_price.py speed.json deployment.json bill.json)"

US dollars per million tokens, input and output. A token of the answer costs what the machine costs in the
time that it takes to write it, at the best of the measured speeds; a token of the question costs a third
of that, as in the published price list.
"""

import json
import re
import sys
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

SECONDS_PER_HOUR = 3600
MILLION = 1_000_000
OUTPUT_TO_INPUT = 3
SMALLEST = Decimal("0.0001")
_PRESET = re.compile(r"(?P<vcpu>\d+)vcpu-(?P<ram>\d+)gb")


def hourly_rate(preset: str, platform: str, lines: Iterable[Mapping[str, Any]]) -> Decimal:
    """Return what a machine of this preset costs an hour, by the unit prices of a bill of the platform."""
    amounts = _PRESET.fullmatch(preset)
    if amounts is None:
        raise SystemExit(f"{preset}: only presets of CPUs and memory, such as 2vcpu-4gb, have a price here")
    prices = {line["sku"]: Decimal(line["unit_price"]) for line in lines if line.get("unit_price")}
    try:
        return sum(
            (int(amounts[unit]) * prices[f"{platform}.{unit}"] for unit in ("vcpu", "ram")), Decimal(0)
        )
    except KeyError as error:
        raise SystemExit(f"The bill has no price of {error.args[0]}: nothing was used of it yet") from error


def token_price(rate: Decimal, tokens_per_second: Decimal) -> str:
    """Return INPUT/OUTPUT in dollars per million tokens."""
    output = max(SMALLEST, (rate / (tokens_per_second * SECONDS_PER_HOUR) * MILLION).quantize(SMALLEST))
    return f"{max(SMALLEST, (output / OUTPUT_TO_INPUT).quantize(SMALLEST))}/{output}"


def main(arguments: list[str]) -> int:
    if len(arguments) != 3:
        sys.stderr.write(__doc__ or "")
        return 2
    speed, deployment, bill = (json.loads(Path(name).read_text()) for name in arguments)
    measured = [
        Decimal(row["tokens_per_second"]) for row in speed["serving"] if "at a time" in row["scenario"]
    ]
    rate = hourly_rate(deployment["spec"]["preset"], deployment["spec"]["platform"], bill["lines"])
    sys.stdout.write(f"{token_price(rate, max(measured))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
