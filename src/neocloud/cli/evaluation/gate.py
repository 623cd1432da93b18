"""The gate of `neo evaluate` and `neo tune`: read the file before anything runs, and show the verdict."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated

import typer

from neocloud.cli.output import JsonObject, print_view, say, table
from neocloud.cli.terminal import EXIT_GATE
from neocloud.client.errors import ClientError
from neocloud.core.evaluation_gate import (
    LARGEST_GATE_BYTES,
    METRICS,
    BadGate,
    Gate,
    RuleVerdict,
    Verdict,
    parse_gate,
)

__all__ = ["EXIT_GATE", "JobGateOption", "gate_text", "read_gate", "show_rules", "verdict_document"]

JobGateOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="JSON file with rules on the evaluation. A model that fails one is kept and not served, and the"
        " exit code is 8.",
    ),
]


def gate_text(path: Path) -> str:
    """Return the text of a gate file. Raises ClientError."""
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_GATE_BYTES + 1).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ClientError("INVALID_ARGUMENT", f"The gate {path} cannot be read: {error}") from error


def read_gate(path: Path, known: Collection[str] = METRICS, tasks: Collection[str] = ()) -> Gate:
    """Read and check a gate file. Raises ClientError."""
    try:
        return parse_gate(gate_text(path), known, tasks)
    except BadGate as error:
        raise ClientError(
            "INVALID_ARGUMENT", f"The gate {path}: {error}", "See the guide: docs/guides/evaluate.md"
        ) from error


def verdict_document(verdict: Verdict) -> JsonObject:
    rules = [
        {"asked": each.asked, "measured": each.measured, "passed": each.passed, "why": each.why}
        for each in verdict.rules
    ]
    return {"passed": verdict.passed, "rules": rules}


def show_rules(rules: Sequence[RuleVerdict], *, on_stderr: bool) -> None:
    """Print each rule with what was measured and why it passed or failed."""
    passed = all(rule.passed for rule in rules)
    if on_stderr:  # stdout is a document for programs
        for rule in rules:
            verdict = "passed" if rule.passed else "FAILED"
            say(f"{verdict}: {rule.asked}. Measured: {rule.measured}. {rule.why}.")
    else:
        rows = [
            (rule.asked, rule.measured, "passed" if rule.passed else "FAILED", rule.why) for rule in rules
        ]
        print_view(table(["ASKED", "MEASURED", "VERDICT", "WHY"], rows))
    say(f"The gate {'passed' if passed else 'FAILED'}.")
