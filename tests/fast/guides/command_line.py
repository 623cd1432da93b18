"""Checks whether `neo` command lines parse, by the parser of the command line itself; runs nothing."""

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import typer

from tests.fast.cli.test_help import commands

_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?.*?\n.*?^\1$", re.MULTILINE | re.DOTALL)
_SUBSTITUTION = re.compile(r"\$\((neo [^()]*)\)")
_DESCRIPTOR = re.compile(r"(?<=\s)\d(?=>)")
_SEPARATORS = re.compile(r"[();|&]+")
_REDIRECTIONS = ("<", ">", ">>", ">&", "<<<")
_PLACEHOLDER = re.compile(r"[A-Z0-9_/:.@-]*[A-Z][A-Z0-9_/:.@-]*|.*(\.\.\.|…|\$).*")
"""What stands for a value in a text: NAME, ID, HOST:PORT, `...` or a variable of the shell."""


def neo_lines(script: str) -> Iterator[list[str]]:
    """Yield the words of each `neo` command in a shell script."""
    for line in _shell_lines(_HEREDOC.sub("", script).replace("\\\n", " ")):
        words: list[str] = []
        for word in [*_words(line), ";"]:
            if _SEPARATORS.fullmatch(word):
                words = words[1:] if words[:1] in (["do"], ["then"], ["else"], ["!"]) else words
                if words[:1] == ["neo"]:
                    yield _without_redirections(words)
                words = []
            else:
                words.append(word)
                for inner in _SUBSTITUTION.findall(word):  # within quotation marks
                    yield from neo_lines(inner)


def _shell_lines(script: str) -> Iterator[str]:
    """Yield the lines of a script; those that a quotation joins as one. A drawing is left out."""
    lines = script.splitlines()
    while lines:
        for count in range(1, len(lines) + 1):
            text = "\n".join(lines[:count])
            try:
                _words(text)
            except ValueError:
                continue
            yield text
            break
        else:
            count = 1
        del lines[:count]


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(_DESCRIPTOR.sub("", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(lexer)


def _without_redirections(words: Sequence[str]) -> list[str]:
    return [
        word
        for number, word in enumerate(words)
        if word not in _REDIRECTIONS and (number == 0 or words[number - 1] not in _REDIRECTIONS)
    ]


def fault_of(words: Sequence[str], *, is_whole: bool) -> str:
    """Return what is wrong with a command line, or "".

    `is_whole`: it must have all its arguments and options, as in a code block. Running text may omit some.
    """
    command: Any = commands()[("neo",)]
    rest = list(words[1:])
    if rest[:1] == ["--profile"]:
        rest = rest[2:]
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        inner = command.get_command(typer.Context(command), name)
        if inner is None and _PLACEHOLDER.fullmatch(name):
            return ""
        if inner is None:
            return f"there is no command {name!r} in `{' '.join(words)}`"
        command = inner
    if hasattr(command, "commands") and is_whole and not rest and not command.invoke_without_command:
        return f"`{' '.join(words)}` is a group of commands"
    return _fault_of_arguments(command, rest, " ".join(words), is_whole)


def _fault_of_arguments(command: Any, arguments: Sequence[str], line: str, is_whole: bool) -> str:
    context = typer.Context(command, info_name=line)
    try:
        given, left, _ = command.make_parser(context).parse_args(args=[*arguments])
        for parameter in command.params:
            value = given.get(parameter.name)
            if value and not _is_open(parameter, value):
                parameter.get_runtime_param().coerce(value, param=parameter, ctx=context)
    except typer.TyperException as error:
        if not is_whole and "requires an argument" in error.format_message():
            return ""
        return f"`{line}`: {error.format_message()}"
    left = [word for word in left if not _PLACEHOLDER.fullmatch(word) or is_whole]
    if left and not context.allow_extra_args:
        return f"`{line}`: {left} is too much"
    missing = [
        parameter.name.upper()
        for parameter in command.params
        if parameter.required and given.get(parameter.name) in (None, (), [], "")
    ]
    return f"`{line}`: {', '.join(missing)} is missing" if missing and is_whole else ""


def _is_open(parameter: Any, value: str | bool | Sequence[str]) -> bool:
    """Return whether a value stands for another, or is a file that need not be here."""
    kind = parameter.type_descriptor
    texts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return kind.is_path or kind.is_file or any(_PLACEHOLDER.fullmatch(text) for text in texts)
