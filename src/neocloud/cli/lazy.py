"""Command groups whose members are imported when they are used, so that `neo --help` starts quickly.

A table names each command with its help text; the module behind it is loaded only to run the command or to
show its own help. Only this module and `main` import by name.
"""

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from typer._click.core import Command, Context


@dataclass(frozen=True)
class Entry:
    """A command that has not been loaded yet."""

    help: str
    panel: str
    source: str = ""
    """Where its Typer app is, as `module` or `module:attribute`; by default a module of its name, `app`."""
    is_derived: bool = False
    """Whether it is a product whose commands are derived from the contract."""


SAME_VERBS: Mapping[str, tuple[str, ...]] = {
    "show": ("get",),
    "describe": ("get",),
    "list": ("list-members",),
    "ls": ("list", "list-members"),
    "rm": ("delete", "remove"),
    "remove": ("delete",),
    "delete": ("remove",),
}
"""Other words for a verb, for those who expect them; help lists the one that all groups share."""


class CommandGroup(TyperGroup):
    """A group of commands in which a verb may be given by another word."""

    def get_command(self, ctx: "Context", cmd_name: str) -> "Command | None":
        known = next((name for name in SAME_VERBS.get(cmd_name, ()) if name in self.commands), cmd_name)
        return super().get_command(ctx, cmd_name if cmd_name in self.commands else known)


class LazyGroup(TyperGroup):
    package: ClassVar[str] = ""
    """Package of the modules in which commands are."""
    entries: ClassVar[Mapping[str, Entry]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, entry in self.entries.items():
            self.commands[name] = TyperCommand(name, help=entry.help, rich_help_panel=entry.panel)

    def load(self, name: str) -> None:
        """Replace the placeholder of a command with the real one."""
        command = typer.main.get_command(self.app_of(name))
        command.name = name
        join_prose(command)
        self.commands[name] = command

    def app_of(self, name: str) -> typer.Typer:
        """Load the commands behind a name."""
        entry = self.entries[name]
        module, _, attribute = (entry.source or name.replace("-", "_")).partition(":")
        path = module if module.startswith("neocloud.") else f"{self.package}.{module}"
        return getattr(importlib.import_module(path), attribute or "app")

    def resolve_command(self, ctx: "Context", args: list[str]) -> Any:
        if args and args[0] in self.entries:
            self.load(args[0])
        return super().resolve_command(ctx, args)


@dataclass(frozen=True)
class Options:
    """Marks a parameter of a command that stands for several options: those that `build` takes.

    The value of the parameter is what `build`, a function or class, returns for them. Commands share options
    with their meaning in this way.
    """

    build: Callable[..., Any]
    is_last: bool = False
    """Whether they come after the command's own, in help; --output is the last of all."""


class CommandApp(typer.Typer):
    """An app whose commands may have `Options` among their parameters."""

    def command(self, name: str | None = None, **settings: Any) -> Any:
        add = super().command(name, **settings)

        def register(function: Callable[..., None]) -> Callable[..., None]:
            add(_with_options(function))
            return function

        return register


def _with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its `Options` replaced by the parameters that they stand for."""
    own = inspect.signature(function, eval_str=True).parameters
    groups = {
        name: Options(_with_options(each.build), each.is_last)
        for name, parameter in own.items()
        for each in getattr(parameter.annotation, "__metadata__", ())
        if isinstance(each, Options)
    }
    if not groups:
        return function
    inner = {name: inspect.signature(each.build, eval_str=True).parameters for name, each in groups.items()}
    parameters: dict[str, inspect.Parameter] = {}
    for name in sorted(
        own, key=lambda name: 2 * (name == "output") + (name in groups and groups[name].is_last)
    ):
        parameters |= inner.get(name, {name: own[name]})

    def command(**given: Any) -> Any:
        values = {
            name: each.build(**{key: given[key] for key in inner[name]}) for name, each in groups.items()
        }
        return function(**{name: values[name] if name in values else given[name] for name in own})

    take(command, {name: (each.annotation, each.default) for name, each in parameters.items()})
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    return command


def take(command: Callable[..., Any], parameters: Mapping[str, tuple[Any, Any]]) -> None:
    """Give a function with `**given` the signature that Typer reads: annotation and default by name.

    `inspect.Parameter.empty` stands for no default.
    """
    keyword = inspect.Parameter.KEYWORD_ONLY
    signature = [
        inspect.Parameter(name, keyword, annotation=annotation, default=default)
        for name, (annotation, default) in parameters.items()
    ]
    vars(command)["__signature__"] = inspect.Signature(signature)
    command.__annotations__ = {name: annotation for name, (annotation, _) in parameters.items()}


def command_group(help_text: str = "") -> typer.Typer:
    """Return an app for one command or, with a help text, for a group of commands; all share one style."""
    return CommandApp(
        cls=CommandGroup,
        rich_markup_mode="rich",
        add_completion=False,
        help=help_text or None,
        no_args_is_help=bool(help_text),
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def join_prose(command: "Command") -> None:
    """Join the lines of each paragraph, so that the terminal wraps them; keep indented lines (examples)."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    joined = [
        part if re.search(r"^ ", part, re.MULTILINE) else part.replace("\n", " ") for part in paragraphs
    ]
    if len(joined) > 1 and joined[1].startswith("Example"):
        # Typer dedents everything below the first paragraph; an empty one keeps examples indented.
        joined.insert(1, "")
    command.help = "\n\n".join(joined)
    for inner in getattr(command, "commands", {}).values():
        join_prose(inner)
