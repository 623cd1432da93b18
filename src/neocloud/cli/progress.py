"""Progress of work that takes longer than a second, on stderr.

On a terminal a live line shows the stage and then its duration. Elsewhere each stage prints a plain line when
it starts and another when it is done, so that a log shows where time was spent.
"""

import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.console import Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from neocloud.cli.output import console, say
from neocloud.cli.terminal import visible

if TYPE_CHECKING:
    from neocloud.client.connection import Client
    from neocloud.messages.nebius.common.v1 import Operation

SYMBOLS = {"ok": ("✓", "green"), "failed": ("✗", "red"), "pending": ("·", "dim")}
REFRESH_PER_SECOND = 10


def duration(seconds: float) -> str:
    """Return a duration as text: 0.8 s, 12 s, 3 min 05 s, 3 h 05 min, 3 d 02 h."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if hours < 2:
        return f"{minutes} min {int(seconds) % 60:02d} s"
    if hours < 48:
        return f"{hours} h {minutes % 60:02d} min"
    return f"{hours // 24} d {hours % 24:02d} h"


@contextmanager
def stage(title: str) -> Generator[Callable[[str], None]]:
    """Show that `title` is in progress; yields a function that shows a detail beside it."""
    started = time.monotonic()
    screen = console(sys.stderr)
    if not screen.is_terminal:
        say(f"{title} ...")
        yield _Details().show
        say(f"{title}: done in {duration(time.monotonic() - started)}")
        return
    line = _StageLine(title, started)
    with Live(line, console=screen, refresh_per_second=REFRESH_PER_SECOND, transient=True):
        yield line.show
    screen.print(
        Text.assemble(("✓ ", "green"), visible(title), (f"  {duration(time.monotonic() - started)}", "dim"))
    )


class _Details:
    """Prints a line for each change of the detail; a poll that brings nothing new prints nothing."""

    def __init__(self) -> None:
        self.shown = ""

    def show(self, detail: str) -> None:
        if detail and detail != self.shown:
            say(f"  {detail}")
            self.shown = detail


def finish(client: "Client", operation: "Operation", title: str, timeout_seconds: float = 3600.0) -> None:
    """Show what the operation is doing until it is finished. Raises ClientError if it failed."""
    with stage(title) as show_detail:
        client.wait(
            operation,
            on_progress=lambda latest: show_detail(latest.progress_tracker.description),
            timeout_seconds=timeout_seconds,
        )


class _StageLine:
    def __init__(self, title: str, started: float) -> None:
        self.title, self.started, self.detail = title, started, ""
        self.spinner = Spinner("dots")

    def show(self, detail: str) -> None:
        self.detail = detail

    def __rich__(self) -> RenderableType:
        elapsed = duration(time.monotonic() - self.started)
        self.spinner.update(
            text=Text.assemble(
                visible(self.title),
                (f"  {elapsed}  {visible(self.detail)}", "dim"),
                overflow="ellipsis",
                no_wrap=True,
            )
        )
        return self.spinner


class ReportedStep(Protocol):
    """A step of a resource's status, as its service reports it."""

    name: str
    outcome: str
    message: str


class StepsView:
    """A live list of the named steps that a reconciler reports."""

    def __init__(self, title: str, *, is_change: bool = False) -> None:
        """`is_change`: only steps that have something to do, so that they were seen under way, are shown."""
        self.title = title
        self.is_change = is_change
        self.started = time.monotonic()
        self.steps: Sequence[ReportedStep] = ()
        self.worked: set[str] = set()
        """Names of the steps that were seen under way."""
        self.done_after: dict[str, float] = {}
        self.spinner = Spinner("dots")
        self.screen = console(sys.stderr)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    @contextmanager
    def shown(self) -> Generator["StepsView"]:
        if not self.screen.is_terminal:
            say(f"{self.title} ...")
            yield self
            return
        with Live(self, console=self.screen, refresh_per_second=REFRESH_PER_SECOND) as live:
            yield self
            live.refresh()

    def update(self, steps: Sequence[ReportedStep]) -> None:
        """Show the current steps; each has `name`, `outcome` and `message`."""
        self.worked |= {step.name for step in steps if step.outcome not in ("ok", "pending")}
        self.steps = [step for step in steps if step.name in self.worked or not self.is_change]
        for step in self.steps:
            if step.outcome == "ok" and step.name not in self.done_after:
                self.done_after[step.name] = self.elapsed
                if not self.screen.is_terminal:
                    say(f"  {duration(self.elapsed):>8}  {step.name}")

    def __rich__(self) -> RenderableType:
        rows = Table.grid(padding=(0, 1))
        rows.add_column(width=1)
        rows.add_column()
        rows.add_column(justify="right", style="dim")
        rows.add_column(style="dim", overflow="ellipsis", no_wrap=True)
        for step in self.steps:
            done = self.done_after.get(step.name)
            rows.add_row(
                self._symbol(step),
                Text(visible(step.name)),
                "" if done is None else duration(done),
                Text(visible(_message(step))),
            )
        heading = Text.assemble((visible(self.title), "bold"), (f"  {duration(self.elapsed)}", "dim"))
        return Group(heading, rows)

    def _symbol(self, step: ReportedStep) -> RenderableType:
        if step.outcome in SYMBOLS:
            symbol, style = SYMBOLS[step.outcome]
            return Text(symbol, style=style)
        return self.spinner


def _message(step: ReportedStep) -> str:
    return "" if step.outcome == "ok" else step.message
