"""Entry of `neo`: the table of commands, the options before the command, and the exit code.

It must stay quick to import: anything heavy belongs in the module of the command that needs it.
"""

import gc
import importlib
import os
import select
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from neocloud import __version__
from neocloud.cli.choice import Choice
from neocloud.cli.lazy import Entry, LazyGroup
from neocloud.cli.terminal import exit_code, report, report_defect
from neocloud.client.errors import ClientError

if TYPE_CHECKING:
    from typer._click.core import Context

PLAIN_WORDS: Mapping[str, str] = {
    ": Value error, ": ": ",
    "Input should be a valid integer, unable to parse string as an integer": "must be a whole number",
    "Input should be a valid number, unable to parse string as a number": "must be a number",
    "Input should be a valid boolean, unable to interpret input": "must be true or false",
    "Unable to parse input string as an integer, exceeded maximum size": "is too large",
    "Input should be greater than or equal to": "must be at least",
    "Input should be less than or equal to": "must be at most",
    "Input should be": "must be",
}
"""Texts of the option parser about a value, and the texts shown instead."""
COLLECT_AFTER = 50_000
"""New objects before a search for garbage: a command imports most of what it makes, and soon ends."""
MACHINE = "This machine"
PRODUCTS = "Products"
ACCESS = "Access"

HELP = """Neocloud: virtual machines, networks, Slurm clusters and models, on this machine or another.

First steps:

  neo up                                       # start a cloud on this machine
  neo image build machine                      # once: the disks of virtual machines
  neo compute instance create web --public-ip  # a virtual machine
  neo ssh web                                  # a shell in it
  neo slurm cluster create lab --workers 2     # a Slurm cluster
  neo slurm job submit lab train.sbatch        # run a batch job
  neo ps                                       # what runs
  neo billing report                           # what it cost
  neo down                                     # stop it; everything is kept

Every command has its own --help with examples.
"""


NOUNS: Mapping[str, str] = {
    **dict.fromkeys(("cluster", "job", "node"), "slurm"),
    **dict.fromkeys(("instance", "disk", "filesystem", "platform"), "compute"),
    **dict.fromkeys(("network", "subnet", "security-group"), "vpc"),
    **dict.fromkeys(("project", "group", "role", "access-key", "service-account"), "iam"),
    **dict.fromkeys(("bucket", "transfer"), "storage"),
    **dict.fromkeys(("endpoint",), "ai"),
    **dict.fromkeys(("artifact",), "registry"),
}
"""Nouns that people name without their product, and the product."""


class NeoGroup(LazyGroup):
    package = "neocloud.cli.commands"

    def app_of(self, name: str) -> typer.Typer:
        if self.entries[name].is_derived:
            return importlib.import_module("neocloud.cli.commands.products").app_of(name)
        return super().app_of(name)

    def resolve_command(self, ctx: "Context", args: list[str]) -> Any:
        if args and args[0] in NOUNS:
            words = " ".join([NOUNS[args[0]], *args[:2]])
            raise typer.BadParameter(f"There is no command 'neo {args[0]}'. Did you mean 'neo {words}'?")
        return super().resolve_command(ctx, args)

    entries: ClassVar[Mapping[str, Entry]] = {
        "up": Entry("Start the cloud on this machine.", MACHINE),
        "status": Entry("Show the state of the cloud and its machine.", MACHINE),
        "logs": Entry("Print the log of a workload, or of the cloud's server.", MACHINE),
        "down": Entry(
            "Stop the cloud and everything that runs in it; keep its state.", MACHINE, "teardown:down_app"
        ),
        "destroy": Entry(
            "Remove the cloud: containers, networks, images, files.", MACHINE, "teardown:destroy_app"
        ),
        "backup": Entry(
            "Back up the state of the cloud into one encrypted file, while it runs.",
            MACHINE,
            "backup:backup_app",
        ),
        "restore": Entry(
            "Restore the state of a cloud from a backup, into a state folder without a cloud.",
            MACHINE,
            "backup:restore_app",
        ),
        "operator": Entry("Maintenance of the cloud's host, for its operators.", MACHINE, is_derived=True),
        "emulator": Entry("Make an emulated cloud fail on demand.", MACHINE),
        "fleet": Entry("See the health of nodes, explain faults, and simulate.", MACHINE, "fleet.group"),
        "ps": Entry("Show what runs in the project.", PRODUCTS, "overview:ps_app"),
        "top": Entry("Show what runs and how busy it is, on one screen.", PRODUCTS),
        "capacity": Entry("Show how many more nodes of each preset fit now, and what one costs.", PRODUCTS),
        "ls": Entry("Show what is in the project.", PRODUCTS, "overview:ls_app"),
        "ssh": Entry("Sign in to a machine, or to a Slurm cluster.", PRODUCTS, "overview:ssh_app"),
        "image": Entry("Build container images and machine disks.", MACHINE),
        "slurm": Entry("Slurm clusters and their batch jobs.", PRODUCTS),
        "compute": Entry(
            "Virtual machines, their disks and images, and shared file systems.", PRODUCTS, is_derived=True
        ),
        "vpc": Entry("Networks, subnets, addresses, routes and security groups.", PRODUCTS, is_derived=True),
        "deploy": Entry("Serve a model under a name that OpenAI clients call.", PRODUCTS, "inference.deploy"),
        "deployment": Entry(
            "Models being served: their state, logs and size.", PRODUCTS, "inference.deployment"
        ),
        "model": Entry("Models and adapters that can be served.", PRODUCTS, "inference.model"),
        "inference": Entry(
            "Models, the deployments that serve them, and token budgets.", PRODUCTS, is_derived=True
        ),
        "vector-store": Entry("Documents that are searched for answers.", PRODUCTS),
        "chat": Entry("Chat with models in the browser.", PRODUCTS),
        "embed": Entry("Print the vectors of texts, or rank texts by a query.", PRODUCTS),
        "tune": Entry("Fine-tune a model: upload the data, train, compare, serve.", PRODUCTS, "tuning.tune"),
        "tuning": Entry("Fine-tuning jobs.", PRODUCTS, is_derived=True),
        "evaluate": Entry("Compare two served models.", PRODUCTS),
        "billing": Entry("Usage and cost.", PRODUCTS),
        "export": Entry(
            "Audit log and bills in buckets, which the cloud writes on a schedule.", PRODUCTS, is_derived=True
        ),
        "ai": Entry("Container images run as endpoints and jobs.", PRODUCTS, is_derived=True),
        "storage": Entry(
            "Buckets and the objects in them; S3 clients work with them too.",
            PRODUCTS,
            "neocloud.cli.storage.commands:app",
        ),
        "registry": Entry("Registries of container images, which docker and podman use.", PRODUCTS),
        "tco": Entry("Show the total cost of owning a cluster and of a conversation on it.", PRODUCTS),
        "quota": Entry("Limits and usage of a tenant and its projects.", PRODUCTS),
        "audit": Entry("Audit events: changes and refused calls.", ACCESS),
        "iam": Entry("Projects, service accounts, groups, permissions, and your access token.", ACCESS),
        "login": Entry(
            "Sign in as a person, or with a service account's credentials file.", ACCESS, "account:login_app"
        ),
        "logout": Entry("Sign out and remove the profile.", ACCESS, "account:logout_app"),
        "whoami": Entry(
            "Show the account, tenant and project that commands use.", ACCESS, "account:whoami_app"
        ),
        "user": Entry("Users: people who may sign in.", ACCESS),
        "session": Entry("Sign-in sessions.", ACCESS, "account:session_app"),
        "client-config": Entry(
            "Configure other clients for this cloud: SDK, SkyPilot, dstack, Terraform.", ACCESS
        ),
        "config": Entry("Settings of the cloud on this machine, and profiles.", ACCESS),
    }


app = typer.Typer(
    name="neo",
    cls=NeoGroup,
    help=HELP,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"neo {__version__}")
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
    """Run one command line and return its exit code."""
    command = typer.main.get_command(app)
    if {"-h", "--help"} & set(arguments):
        importlib.import_module("neocloud.cli.help_pages").fold_names()
    try:
        result = command.main(args=list(arguments), prog_name="neo", standalone_mode=False)
    except ClientError as error:
        report(str(error))
        return exit_code(error.code)
    except typer.TyperException as error:
        return _report_misuse(error)
    except typer.Abort:
        report("stopped; nothing was changed.")
        return 1
    return result if isinstance(result, int) else 0


def _report_misuse(error: typer.TyperException) -> int:
    """Report an error of the command line itself: an unknown option, a value of the wrong type."""
    context = getattr(error, "ctx", None)
    hint = f" See `{context.command_path} --help`." if context is not None else ""
    message = error.format_message()
    for said, plain in PLAIN_WORDS.items():
        message = message.replace(said, plain)
    if message:  # a group without a command has printed its help instead
        report((message if message.endswith((".", "?")) else f"{message}.") + hint)
    return error.exit_code


def main() -> None:
    gc.set_threshold(COLLECT_AFTER, 20, 20)
    try:
        _main()
    finally:
        gc.freeze()  # Python would look for garbage in all that was imported again, which takes a while


def _main() -> None:
    sys.excepthook = report_defect
    output = os.dup(sys.stdout.fileno())  # Rich puts another file there when its reader has gone
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        code = _code_of_broken_pipe(output)
    except SystemExit as ended:  # Typer and Rich make this of a broken pipe
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        code = _code_of_broken_pipe(output)
    sys.exit(code)


def _code_of_broken_pipe(output: int) -> int:
    """Return 0 where it was the output whose reader has gone (`neo ... | head`), which is not an error."""
    found = select.poll()
    found.register(output, 0)
    if not any(event & select.POLLERR for _, event in found.poll(0)):
        return 1
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    main()
