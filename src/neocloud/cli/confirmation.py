"""Confirmation before something is deleted."""

import sys
from typing import Annotated

import typer

from neocloud.cli.output import say

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking, as scripts do.")]


def confirm(what: str, *, yes: bool, is_new: bool = False) -> None:
    """Ask before `what` is deleted, unless --yes was given. Raises Abort for no, and where nobody can answer.

    `is_new`: the command did not ask before, so scripts without --yes go on working in this release.
    """
    if yes:
        return
    if is_new and not sys.stdin.isatty():
        say(
            f"Deleting {what} without asking, because standard input is not a terminal. Add --yes:"
            " the next release deletes nothing without it."
        )
        return
    if not typer.confirm(f"Delete {what}?", err=True):
        raise typer.Abort
