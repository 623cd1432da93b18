"""Entry of `neo`: the table of commands, the options before the command, and the exit code.

It must stay quick to import: everything heavy belongs into the module of the command that needs it.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated, Any, ClassVar

import typer

from neocloud.cli.failure import exit_code, report, report_defect
from neocloud.cli.lazy import Entry, LazyGroup
from neocloud.client.errors import ClientError

MACHINE = "This machine"
PRODUCTS = "Products"
ACCESS = "Access"

HELP = """Neocloud: virtual machines, networks and Slurm clusters, and their bill, on this machine or another.

First steps:

  neo up                                       # start a cloud here
  neo image build machine                      # once: its disk
  neo compute instance create web --public-ip  # a virtual machine
  neo compute instance ssh web                 # a shell in it
  neo slurm cluster create bank --workers 2    # a Slurm cluster
  neo slurm job submit bank train.sbatch       # run a batch job
  neo billing report                           # what it cost
  neo down                                     # stop; everything is kept

Every command has its own --help with examples.
"""


@dataclass(frozen=True)
class Choice:
    """What was said before the command: which profile to use."""

    profile: str = ""


class NeoGroup(LazyGroup):
    package = "neocloud.cli.commands"
    entries: ClassVar[Mapping[str, Entry]] = {
        "up": Entry("Start the cloud on this machine.", MACHINE),
        "status": Entry("Show what runs, where, and on which hardware.", MACHINE),
        "down": Entry("Stop the cloud and all that runs in it; keep its state.", MACHINE),
        "destroy": Entry("Remove the cloud and every trace of it.", MACHINE),
        "emulator": Entry("Make an emulated cloud fail on demand.", MACHINE),
        "image": Entry("Build the container images, and the disks of machines.", MACHINE),
        "slurm": Entry("Slurm clusters and their batch jobs.", PRODUCTS),
        "compute": Entry("Virtual machines, their disks and images, and shared file systems.", PRODUCTS),
        "vpc": Entry("Networks, subnets, addresses, routes and security groups.", PRODUCTS),
        "deploy": Entry("Serve a model: give it a name that OpenAI clients call.", PRODUCTS),
        "deployment": Entry("Models being served: their state, logs, end.", PRODUCTS),
        "model": Entry("Models and adapters that can be served.", PRODUCTS),
        "inference": Entry(
            "Models, the deployments that serve them, and budgets for their tokens.", PRODUCTS
        ),
        "chat": Entry("Chat with models in the browser.", PRODUCTS),
        "tune": Entry("Fine-tune a model: upload the data, train, compare, serve.", PRODUCTS),
        "tuning": Entry("Fine-tuning jobs.", PRODUCTS),
        "evaluate": Entry("Compare two models that are served.", PRODUCTS),
        "billing": Entry("What was used, and what it costs.", PRODUCTS),
        "ai": Entry("Container images, run as endpoints and jobs.", PRODUCTS),
        "tco": Entry("Show what a cluster costs to own, and a conversation on it.", PRODUCTS),
        "quota": Entry("How much a tenant and its projects may use, and how much they do.", PRODUCTS),
        "audit": Entry("Who changed what, and who was refused.", ACCESS),
        "iam": Entry("Projects, service accounts, groups and who may do what.", ACCESS),
        "login": Entry("Sign in, as a person or with a service account's credentials file.", ACCESS),
        "logout": Entry("Sign out, and forget the profile.", ACCESS),
        "whoami": Entry("Show as whom commands are run, and where.", ACCESS),
        "user": Entry("People who may sign in.", ACCESS),
        "session": Entry("Where people are signed in.", ACCESS),
        "client-config": Entry("Point other programs here: SDK, SkyPilot, dstack, Terraform.", ACCESS),
        "config": Entry("Profiles: which cloud, as whom, in which project.", ACCESS),
    }


app = typer.Typer(
    name="neo",
    cls=NeoGroup,
    help=HELP,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"neo {version('neocloud')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def neo(
    context: typer.Context,
    profile: Annotated[
        str, typer.Option(envvar="NEOCLOUD_PROFILE", help="Profile to use instead of the current one.")
    ] = "",
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    context.obj = Choice(profile)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code."""
    command: Any = typer.main.get_command(app)
    try:
        result = command.main(args=list(arguments), prog_name="neo", standalone_mode=False)
    except ClientError as error:
        report(str(error))
        return exit_code(error.code)
    except typer.TyperException as error:
        return _report_misuse(error)
    except typer.Abort:
        report("stopped, nothing was changed.")
        return 1
    return result if isinstance(result, int) else 0


def _report_misuse(error: Any) -> int:
    """Errors of the command line itself: an unknown option, a value of the wrong type."""
    context = getattr(error, "ctx", None)
    hint = f" See `{context.command_path} --help`." if context is not None else ""
    message = error.format_message()
    if message:  # a group without a command has printed its help instead
        report((message if message.endswith((".", "?")) else f"{message}.") + hint)
    return error.exit_code


def main() -> None:
    sys.excepthook = report_defect
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader went away (`neo ... | head`): that is its right, and no error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


if __name__ == "__main__":
    main()
