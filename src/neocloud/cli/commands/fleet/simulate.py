"""`neo fleet simulate`: the node controller on a virtual clock, with faults of published rates."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from neocloud.cli.commands.fleet.compare import (
    AgainstOption,
    CompareOption,
    FailOption,
    SeedsOption,
    compare_policies,
)
from neocloud.cli.lazy import Options, command_group
from neocloud.cli.output import Format, OutputOption, View, counted, fields_table, show
from neocloud.cli.progress import duration, stage
from neocloud.cli.signals import stopped_by_signals
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.fleet.policy.limits import DAY
from neocloud.fleet.simulator.engine import Simulation
from neocloud.fleet.simulator.rates import OUTLIER
from neocloud.fleet.simulator.result import Result, summarize
from neocloud.fleet.simulator.scenario import Scenario

NODE = 8
NEVER = 1.1
"""A probability that nothing has."""
app = command_group()


@dataclass(frozen=True)
class _ScenarioOptions:
    """The options that describe the simulated fleet and its job."""

    gpus: Annotated[int, typer.Option(min=NODE, max=131_072, help="GPUs of the job, 8 to a node.")] = 16_384
    days: Annotated[float, typer.Option(min=0.1, max=3660, help="Length of the simulated time.")] = 54.0
    spares: Annotated[
        int | None,
        typer.Option(
            min=0, max=16_384, help="Nodes beside those of the job; by the Poisson rule if left out."
        ),
    ] = None
    seed: Annotated[int, typer.Option(help="The same seed gives the same faults.")] = 1
    rate: Annotated[
        float, typer.Option(min=0.01, max=100, help="Faults, as a multiple of the Llama 3 405B run.")
    ] = 1.0
    lemons: Annotated[
        float, typer.Option(min=0, max=0.5, help="Share of nodes with half of the faults, e.g. 0.05.")
    ] = 0.0
    lemon_triage: Annotated[bool, typer.Option(help="Send nodes that fail again and again to repair.")] = True
    rack_faults: Annotated[float, typer.Option(min=0, max=1000, help="Racks that lose power, per year.")] = (
        0.0
    )
    recall: Annotated[
        float, typer.Option(min=0, max=1, help="Share of faults that a check names; others are searched for.")
    ] = 0.9
    false_positives: Annotated[
        float, typer.Option(min=0, max=1, help="Wrong verdicts of trusted checks, per node and day.")
    ] = 0.0001
    trust_outlier: Annotated[
        bool, typer.Option("--trust-outlier", help="Let the outlier detector drain nodes without a record.")
    ] = False
    save: Annotated[float, typer.Option(min=0.1, max=3600, help="Duration of a checkpoint in seconds.")] = (
        60.0
    )
    interval: Annotated[
        float, typer.Option(min=0, max=86_400, help="Seconds between checkpoints; 0 for Daly's.")
    ] = 0.0
    restart: Annotated[
        float, typer.Option(min=0, max=86_400, help="Seconds to start the job and load a checkpoint.")
    ] = 120.0
    repair_days: Annotated[
        float, typer.Option(min=0.01, max=365, help="Days that a node is out for a new part.")
    ] = 7.0
    maintenance_minutes: Annotated[
        float, typer.Option(min=0, max=1440, help="Length of the daily planned interruption; 0 for none.")
    ] = 30.0

    def scenario(self) -> Scenario:
        """Return what they describe. Raises ClientError."""
        if self.gpus % NODE:
            raise ClientError("INVALID_ARGUMENT", f"--gpus: {self.gpus} is not a multiple of {NODE}.")
        scenario = Scenario(
            gpus=self.gpus,
            days=self.days,
            spares=self.spares,
            seed=self.seed,
            rate=self.rate,
            lemon_nodes=self.lemons,
            rack_faults_per_year=self.rack_faults,
            recall=self.recall,
            false_positives=self.false_positives,
            trust_outlier=self.trust_outlier,
            save=self.save,
            checkpoint_interval=self.interval or None,
            restart=self.restart,
            repair=self.repair_days * DAY,
            maintenance=self.maintenance_minutes * 60,
        )
        limits = scenario.limits
        if self.trust_outlier:
            limits = replace(limits, trusted=limits.trusted | {OUTLIER})
        if not self.lemon_triage:
            limits = replace(limits, lemon_probability=NEVER)
        return replace(scenario, limits=limits)


@app.command()
def simulate(
    described: Annotated[_ScenarioOptions, Options(_ScenarioOptions)],
    compare: CompareOption = None,
    against: AgainstOption = None,
    seeds: SeedsOption = 10,
    fail_if_worse: FailOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Simulate one job on a fleet whose nodes fail: interruptions, useful time, spares, checkpoint interval.

    Nothing here is measured. The faults are random, with the rates of the Llama 3 405B run and with
    assumptions that --output json lists. States, decisions and breakers are those of the node controller.

    Examples:

      neo fleet simulate --gpus 1024
      neo fleet simulate --gpus 4096 --days 30 --spares 8 --lemons 0.05
      neo fleet simulate --save 10 --restart 60 --output json
      neo fleet simulate --gpus 2048 --compare limits.yaml --seeds 10
    """
    scenario = described.scenario()
    if compare or against:
        compare_policies(scenario, compare or [], against or [], seeds, output, fail_if_worse=fail_if_worse)
        return
    simulation = Simulation(scenario)
    title = f"Simulating {scenario.gpus:,} GPUs for {scenario.days:g} days"
    with stopped_by_signals(), stage(title) as show_detail:
        simulation.run(lambda share: show_detail(_tenths(share)))
    result = summarize(simulation)
    show(output, result.document(simulation), View(list(fields_table(_rows(simulation, result)).rows)))
    if output is Format.TABLE:
        echo("\nAll of this is simulated. The inputs and their sources: --output json.")


def _tenths(share: float) -> str:
    return f"{int(share * 10) * 10}%"


def _rows(simulation: Simulation, result: Result) -> Iterator[tuple[str, str]]:
    scenario = simulation.scenario
    yield "Evidence", "simulated"
    yield "Job", f"{scenario.gpus:,} GPUs on {scenario.job_nodes:,} nodes, {scenario.days:g} days"
    yield "Unplanned interruptions", f"{result.interruptions:,} ({result.relapses} by faults that came back)"
    for cause, count in list(result.by_cause.items())[:5]:
        yield f"  {cause}", f"{count:,}"
    yield "Planned interruptions", f"{result.planned_interruptions:,}"
    yield "Time to interruption", f"{result.mtti_hours:.1f} h" if result.mtti_hours else "none occurred"
    if result.recovery_seconds is not None:
        yield "Time to recover", duration(result.recovery_seconds)
    yield "ETTR", _share(result.ettr)
    if result.ettr_closed_form is not None and result.ettr_first_order is not None:
        forms = f"{_share(result.ettr_closed_form)}; first order {_share(result.ettr_first_order)}"
        yield "ETTR by closed form", forms
    yield "Goodput", _share(result.goodput)
    yield "Drains without a fault", f"{result.false_drains:,}, {_share(result.false_drain_loss)} of the time"
    if result.lemons or result.lemons_sent_to_triage:
        right = f"{result.lemons_among_them} of them lemons ({result.lemons} in all)"
        yield "Sent to triage as lemons", f"{result.lemons_sent_to_triage}, {right}"
    waited = duration(result.waiting_for_spares) if result.waiting_for_spares else "not at all"
    yield "Waited for spares", f"{waited}, with {result.spares} spares"
    yield "Nodes out", f"{result.spares_needed_p99} (P99), {result.spares_needed_most} at most"
    yield "Spares by the Poisson rule", f"{result.spares_by_rule} (P99)"
    yield "Checkpoint every", duration(result.checkpoint_interval)
    if result.young_interval and result.daly_interval:
        yield "  best by Young, Daly", f"{duration(result.young_interval)}, {duration(result.daly_interval)}"
    yield "  best in these runs", f"{duration(result.best_interval)}, ETTR {_share(result.best_ettr)}"
    yield "Breakers tripped", counted(result.breaker_trips, "time")


def _share(value: float) -> str:
    return f"{100 * value:.2f}%"
