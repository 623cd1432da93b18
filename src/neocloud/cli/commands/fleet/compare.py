"""`neo fleet simulate --compare`: what a change of the fault policy or of limits does, before it is made."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from neocloud.cli.output import Format, show, table
from neocloud.cli.progress import stage
from neocloud.cli.signals import stopped_by_signals
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.fleet.policy.limits_file import is_limits_file, load_limits
from neocloud.fleet.policy.policy_file import MOST_CHARACTERS, PolicyError, default_policy, load_policy
from neocloud.fleet.simulator.comparison import (
    FEWEST_SEEDS,
    MEASURES,
    MOST_SEEDS,
    Comparison,
    Difference,
    Setup,
    compare,
)
from neocloud.fleet.simulator.scenario import Scenario

CompareOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--compare",
        metavar="FILE",
        help="Policy or limits file to compare with those of this release; repeatable, one of each.",
    ),
]
AgainstOption = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE", help="Policy or limits file to compare with instead; repeatable, one of each."
    ),
]
SeedsOption = Annotated[
    int, typer.Option(min=FEWEST_SEEDS, max=MOST_SEEDS, help="Pairs of runs of a comparison.")
]
FailOption = Annotated[
    bool, typer.Option("--fail-if-worse", help="Exit with 1 if a comparison shows less useful time.")
]
DEFAULT = "this release"


def compare_policies(
    scenario: Scenario,
    compared: Sequence[Path],
    against: Sequence[Path],
    seeds: int,
    output: Format,
    *,
    fail_if_worse: bool,
) -> None:
    before, after = _setup(against), _setup(compared)
    numbers = range(scenario.seed, scenario.seed + seeds)
    title = f"Simulating {scenario.gpus:,} GPUs for {scenario.days:g} days, {seeds} times each"
    with stopped_by_signals(), stage(title) as show_detail:
        found = compare(scenario, before, after, numbers, lambda share: show_detail(f"{share:.0%}"))
    headers = ["MEASURE", "BEFORE", "AFTER", "CHANGE", "95% INTERVAL", "VERDICT"]
    rows = [_row(each) for each in found.differences]
    show(output, found.document(), table(headers, rows, right=["BEFORE", "AFTER", "CHANGE", "95% INTERVAL"]))
    if output is Format.TABLE:
        sides = f"{before.name} before, {after.name} after"
        echo(f"\nSimulated: {sides}; {seeds} pairs of runs with the same faults.")
    if fail_if_worse:
        _refuse_worse(found)


def _refuse_worse(found: Comparison) -> None:
    if found.is_worse:
        raise ClientError("ABORTED", f"With {found.after.name} less time is useful, with 95% confidence")


def _setup(files: Sequence[Path]) -> Setup:
    """Read one side; what no file gives is that of this release."""
    policies = [(path, text) for path in files if not is_limits_file(text := _text(path))]
    limits = [(path, text) for path in files if is_limits_file(text := _text(path))]
    if len(policies) > 1 or len(limits) > 1:
        raise ClientError("INVALID_ARGUMENT", "A side has one policy file and one limits file at most")
    try:
        policy = load_policy(policies[0][1], str(policies[0][0])) if policies else default_policy()
        changes: Mapping[str, int | float] = load_limits(limits[0][1], str(limits[0][0])) if limits else {}
    except PolicyError as error:
        raise ClientError("INVALID_ARGUMENT", str(error)) from error
    return Setup(" and ".join(path.name for path in files) or DEFAULT, policy, changes)


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MOST_CHARACTERS + 1)
    except OSError as error:
        raise ClientError("INVALID_ARGUMENT", f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ClientError("INVALID_ARGUMENT", f"{path} is not a text file") from error


def _row(each: Difference) -> tuple[str, ...]:
    measure = next(measure for measure in MEASURES if measure.name == each.name)
    scale, unit = (100.0, " %") if measure.is_share else (1.0, "")
    digits = 3 if measure.is_share else 1

    def text(value: float, sign: str = "") -> str:
        return f"{scale * value:{sign}.{digits}f}{unit}"

    interval = f"{text(each.low, '+')} to {text(each.high, '+')}"
    name = each.name.replace("_", " ")
    return name, text(each.before), text(each.after), text(each.change, "+"), interval, each.verdict
