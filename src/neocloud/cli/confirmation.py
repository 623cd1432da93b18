"""Confirmation before something is deleted."""

import sys
from typing import Annotated

import typer

from neocloud.cli.output import say

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Skip confirmation.")]


def confirm(question: str, *, yes: bool, is_new: bool = False) -> None:
    """Ask unless --yes was given. Raises Abort for no, and where nobody can answer.

    `is_new`: the command did not ask before, so scripts without --yes go on working in this release.
    """
    if yes:
        return
    if is_new and not sys.stdin.isatty():
        say(
            "Deleting without asking, because standard input is not a terminal. Add --yes to confirm"
            " explicitly: without it, the next release asks."
        )
        return
    if not typer.confirm(question, err=True):
        raise typer.Abort
