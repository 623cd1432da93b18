"""Write the reference page of all commands, from the same help texts that `--help` shows.

    python -m neocloud.cli.reference docs/reference/cli.md

`make docs` runs it, and a test fails when the page is not what this would write.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from neocloud.cli.failure import EXIT_CODE_MEANINGS
from neocloud.cli.lazy import LazyGroup
from neocloud.cli.main import app

HEAD = """# Commands of `neo`

<!-- Written by `make docs` from the commands themselves; change their help texts, not this page. -->

Results go to stdout, everything else to stderr. Reading commands take `--output table|json|yaml`; JSON and
YAML have the field names of the API. Without a terminal there are no escape codes and no row is cut;
`NO_COLOR` is honoured. Control characters in logs, names and answers are shown as text on a terminal, `\\x1b`
for an escape; piped, they come unchanged. `neo --install-completion` sets up completion for your shell.

`--profile` (or `NEOCLOUD_PROFILE`) before the command chooses the cloud to talk to; `NEOCLOUD_HOME` names the
state folder of a cloud on this machine. Profiles lie in `$XDG_CONFIG_HOME/neocloud/config.yaml`.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, *_exit_codes()]
    for path, command in _walk(typer.main.get_command(app), ("neo",)):
        parts += _section(path, command)
    return "\n".join(parts).rstrip() + "\n"


def _exit_codes() -> list[str]:
    rows = [f"| {code} | {meaning} |" for code, meaning in EXIT_CODE_MEANINGS.items()]
    return ["## Exit codes", "", "| code | meaning |", "|---|---|", *rows, ""]


def _walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(command, LazyGroup):
        for name in command.entries:
            command.load(name)
    if len(path) > 1:
        yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _walk(inner, (*path, name))


def _section(path: tuple[str, ...], command: Any) -> list[str]:
    words = " ".join(path)
    lines = [f"{'#' * min(len(path), 4)} {words}", "", *_prose(command.help)]
    rows = [row for parameter in command.params if (row := _parameter(parameter)) is not None]
    if rows:
        lines += ["| argument or option | |", "|---|---|", *rows, ""]
    return lines


def _prose(help_text: str) -> list[str]:
    lines: list[str] = []
    for paragraph in filter(None, help_text.split("\n\n")):
        if paragraph.startswith("  "):
            lines += ["```", *(line.removeprefix("  ") for line in paragraph.splitlines()), "```", ""]
        else:
            lines += [paragraph, ""]
    return lines


def _parameter(parameter: Any) -> str | None:
    if getattr(parameter, "hidden", False) or "--help" in parameter.opts:
        return None
    if parameter.param_type_name == "argument":
        name = f"`{parameter.metavar or parameter.name.upper()}`"
    else:
        name = ", ".join(f"`{option}`" for option in (*parameter.opts, *parameter.secondary_opts))
    notes = [parameter.help or "", *(["Required."] if parameter.required else [])]
    return f"| {name} | {' '.join(filter(None, notes)).replace('|', '&#124;')} |"


def main() -> None:
    Path(sys.argv[1]).write_text(page())


if __name__ == "__main__":
    main()
