"""Runs the command blocks of a page as its reader would: in order, in one shell, at a terminal."""

import os
import pty
import shlex
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.contract_cache import cache_with_contract
from tests.fast.guides.blocks import Block
from tests.leftovers import RUN
from tests.neo_server import command as server_command
from tests.neo_server import listening

SESSION_SECONDS = 420
"""How long one page may take on a machine that is many times slower."""
SHELL_LANGUAGES = ("sh", "bash", "console")


def environment_of(home_directory: Path, cache: Path, **more: str) -> dict[str, str]:
    """Return the environment of a reader: `neo` of these sources, and no variables of the user who tests."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "HOME": str(home_directory),
        "XDG_CACHE_HOME": str(cache_with_contract(cache)),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "COLUMNS": "160",
        RUN: os.environ.get(RUN, ""),
        **more,
    }


@dataclass(frozen=True)
class Reader:
    """The reader of a page: the files, the typed commands, and those that are not run."""

    not_run: Mapping[str, str] = field(default_factory=dict)
    """Why a command is not run: by the beginning of its line; another block by its first line."""
    stands_for: Mapping[str, str] = field(default_factory=dict)
    """Words of the page that stand for something else, as PROJECT_ID does."""
    before: str = ""
    """Shell commands: what the reader has when beginning with the page."""
    between: Mapping[str, str] = field(default_factory=dict)
    """Shell commands that the text asks for, by the beginning of the line that they precede."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Answers to the prompts that end with these words."""


class ReadError(AssertionError):
    """A block of the page does not work."""


def commands_of(block: Block) -> list[str]:
    """Return the lines of a block of shell commands; a continued line and a here-document count as one."""
    found: list[str] = []
    end = ""
    for line in block.text.splitlines():
        if end or (found and found[-1].endswith("\\")):
            found[-1] += f"\n{line}"
            end = "" if line == end else end
        elif line.strip():
            found.append(line)
            if "<<" in line:
                end = shlex.split(line.partition("<<")[2])[0]
    return found


def parts_of(block: Block) -> list[str]:
    """Return what may be left out of a block: single commands, or all of it."""
    return commands_of(block) if block.language in SHELL_LANGUAGES else [block.text]


def reason_of(part: str, reader: Reader) -> str:
    """Return why a part of a block is not run, or ""."""
    return next((why for start, why in reader.not_run.items() if part.startswith(start)), "")


def run_page(
    blocks: Sequence[Block],
    reader: Reader,
    folder: Path,
    environment: Mapping[str, str],
    enter: Sequence[str] = (),
) -> dict[str, str]:
    """Run what is not excluded and return the output of each block by its place. Raises ReadError.

    `enter`: the beginning of a command line that runs the rest of it elsewhere.
    """
    script = folder / "page.sh"
    progress, output = folder / "progress", folder / "output"
    script.write_text("\n".join(_script(blocks, reader, folder)) + "\n")
    output.mkdir()
    conversation = _Conversation(output, reader.types)
    if enter:
        code = conversation.hold([*enter, "bash", str(script)], folder / "work", environment)
    else:
        code = conversation.hold_with_neo(["bash", str(script)], folder / "work", environment)
    if code != 0:
        places = progress.read_text().splitlines() if progress.exists() else []
        place = places[-1] if places else "before the first block"
        raise ReadError(f"{place}: exit code {code}\n{conversation.newest()}")
    numbers = {f"{number:03}": block.place for number, block in enumerate(blocks)}
    return {numbers[file.name]: file.read_text() for file in sorted(output.iterdir()) if file.name in numbers}


def _script(blocks: Sequence[Block], reader: Reader, folder: Path) -> Iterator[str]:
    yield "set -eu -o pipefail"
    yield f"exec 5>{shlex.quote(str(folder / 'progress'))}"
    yield f"exec >{shlex.quote(str(folder / 'output' / 'before'))} 2>&1"
    yield reader.before
    programs = ""
    for number, block in enumerate(blocks):
        parts = [part for part in parts_of(block) if not reason_of(part, reader)]
        if not parts:
            continue
        yield f"echo {shlex.quote(block.place)} >&5"
        yield f"exec >{shlex.quote(str(folder / 'output' / f'{number:03}'))} 2>&1"
        if block.language == "python":
            programs += _filled_in(block.text, reader)
            yield f"cat > program-{number}.py <<END_OF_BLOCK\n{programs}END_OF_BLOCK"
            yield f"{shlex.quote(sys.executable)} program-{number}.py"
        elif block.language in SHELL_LANGUAGES:
            for part in parts:
                yield from (more for start, more in reader.between.items() if part.startswith(start))
                yield _filled_in(part, reader)
        else:  # a file, whose name is in its first line
            name = block.text.splitlines()[0].removeprefix("# ")
            yield f"cat > {shlex.quote(name)} <<'END_OF_BLOCK'\n{block.text}END_OF_BLOCK"


def _filled_in(text: str, reader: Reader) -> str:
    for word, value in reader.stands_for.items():
        text = text.replace(word, value)
    return text


_TAKE_TERMINAL = """
import fcntl, os, subprocess, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
if os.environ.get("NEO_SERVER"):
    *server, listener, end = os.environ.pop("NEO_SERVER").split("\\n")
    subprocess.Popen([*server, listener], stdin=int(end), pass_fds=[int(listener)])
    os.closerange(3, 1024)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""The server of `neo` is in the session of the terminal, since `neo` asks there for passwords."""


@dataclass
class _Conversation:
    """Types the answers to prompts, which are the ends of files while nothing more comes."""

    output: Path
    types: Mapping[str, str]
    answered: dict[str, int] = field(default_factory=dict[str, int])
    """How much of a file had been written when its newest prompt was answered."""

    def hold_with_neo(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> int:
        """Run a command that finds the `neo` of `tests.neo_server`."""
        with tempfile.TemporaryDirectory(prefix="neocloud-neo-") as place, listening(Path(place)) as listener:
            end, ours = os.pipe()
            try:
                files = (listener.fileno(), end)
                variables = {
                    **environment,
                    "PATH": f"{place}:{environment['PATH']}",
                    "NEO_SERVER": "\n".join([*server_command(listener.fileno()), str(end)]),
                }
                return self.hold(command, folder, variables, files)
            finally:
                os.close(end)
                os.close(ours)

    def hold(
        self,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        files: Sequence[int] = (),
    ) -> int:
        """Run a command at a terminal of its own and return its exit code. Raises ReadError."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env=environment,
            start_new_session=True,
            pass_fds=files,
        )
        try:
            deadline = time.monotonic() + SESSION_SECONDS
            while process.poll() is None:
                if time.monotonic() > deadline:
                    raise ReadError(f"not finished after {SESSION_SECONDS} s\n{self.newest()}")
                if self.types:
                    self._answer(ours, theirs)
                time.sleep(0.05)
            return process.returncode
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            os.close(ours)
            os.close(theirs)

    def newest(self) -> str:
        """Return what the newest block has printed."""
        files = sorted(self.output.iterdir(), key=lambda file: file.stat().st_mtime_ns)
        return files[-1].read_text(errors="replace") if files else ""

    def _answer(self, ours: int, theirs: int) -> None:
        for file in self.output.iterdir():
            text = file.read_text(errors="replace")
            if len(text) == self.answered.get(file.name):
                continue
            for prompt, answer in self.types.items():
                if text.rstrip().endswith(prompt) and _takes_input(theirs, prompt):
                    os.write(ours, f"{answer}\n".encode())
                    self.answered[file.name] = len(text)


def _takes_input(terminal: int, prompt: str) -> bool:
    """Return whether an answer counts: a password prompt discards text typed before it turns the echo off."""
    echoes = bool(termios.tcgetattr(terminal)[3] & termios.ECHO)
    return not echoes or "assword" not in prompt
