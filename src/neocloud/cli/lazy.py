"""Command groups whose members are imported when they are used, so that `neo --help` starts at once.

A table names each command with its help text; the module behind it is loaded only to run the command or to
show its own help. This is the one place in the program that imports by name.
"""

import importlib
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True)
class Entry:
    """A command that is not loaded yet."""

    help: str
    panel: str


class LazyGroup(TyperGroup):
    package: ClassVar[str] = ""
    """Where each command has a module of its name, with its Typer app as `app`."""
    entries: ClassVar[Mapping[str, Entry]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, entry in self.entries.items():
            self.commands[name] = TyperCommand(name, help=entry.help, rich_help_panel=entry.panel)

    def load(self, name: str) -> None:
        """Put the real command in place of its entry."""
        module = importlib.import_module(f"{self.package}.{name.replace('-', '_')}")
        command = typer.main.get_command(module.app)
        command.name = name
        join_prose(command)
        self.commands[name] = command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in self.entries:
            self.load(args[0])
        return super().resolve_command(ctx, args)


def command_group(help_text: str = "") -> typer.Typer:
    """An app for a command, or with a help text for a group of commands; all look and behave alike."""
    return typer.Typer(
        rich_markup_mode="rich",
        add_completion=False,
        help=help_text or None,
        no_args_is_help=bool(help_text),
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def join_prose(command: Any) -> None:
    """Let the terminal wrap help texts: lines of a paragraph are joined, indented ones (examples) stay."""
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
