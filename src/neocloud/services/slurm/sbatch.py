"""The command that submits a job: environment and script on standard input, all else as arguments (rfd 0007).

Arguments can be read by every user of the machine and of the login node; the environment often holds keys.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

DEFAULT_WORKING_DIRECTORY = "/home/shared"

_SUBMIT = """
variables=()
while IFS= read -r -d "" each && [ -n "$each" ]; do variables+=("$each"); done
script=$(mktemp) && cat >"$script" || exit 1
options=$1; shift
set -- "$(type -P sbatch)" "${@:1:options}" "$script" "${@:options+1}"
(
    for each in "${variables[@]}"; do export "$each"; done
    exec "$@"
) </dev/null
code=$?; rm -f "$script"; exit $code
"""
"""$1 is the number of sbatch options that follow; the rest are the script's arguments. Standard input has
each NAME=value and a NUL after it, one more NUL, and the script."""

_JOB_ID = re.compile(rb"(?:^|\n)([0-9]{1,10})(;[^\n]*)?\s*$")
SAID_BYTES = 2000
"""Length of the end of sbatch's output that is read or shown."""
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STEERS_PROGRAMS = re.compile(
    r"LD_.*|GCONV_PATH|LOCPATH|NLSPATH|HOSTALIASES|RES_OPTIONS|MALLOC_.*|GLIBC_TUNABLES"
    r"|ENV|BASH_.*|BASHOPTS|SHELLOPTS|PS4|IFS|PYTHON(HOME|STARTUP|INSPECT)|PERL5(OPT|LIB)"
)
"""Names that make the loader, the C library or an interpreter run code before the first line of a program.
A job's script sets them itself where it needs them; then they reach nothing but the job."""


def environment_problem(environment: Mapping[str, str]) -> str | None:
    """What is wrong with the first variable that a submitted job may not set in its environment."""
    for name, value in environment.items():
        if not _ENVIRONMENT_NAME.fullmatch(name):
            return f'"{name}" is no name of an environment variable'
        if _STEERS_PROGRAMS.fullmatch(name):
            return f'"{name}" changes what programs load before they start; export it in the script instead'
        if "\0" in value:
            return f'the value of "{name}" has a NUL character in it, which no variable can hold'
    return None


def sbatch_command(options: Sequence[str], arguments: Iterable[str]) -> list[str]:
    """To be run on the login node, with `sbatch_input` on standard input."""
    return ["/bin/bash", "-l", "-c", _SUBMIT, "sbatch", str(len(options)), *options, *arguments]


def sbatch_input(environment: Mapping[str, str], script: str) -> bytes:
    """What the command reads. The environment has been looked at by `environment_problem`."""
    variables = [f"{name}={value}\0" for name, value in sorted(environment.items())]
    return "".join([*variables, "\0", script]).encode()


def refusal(stderr: bytes) -> str:
    """Why sbatch took no job, by its own words."""
    return stderr[-SAID_BYTES:].decode(errors="replace").strip()


def job_id_in(output: bytes) -> int:
    """Return the job id in the output of `sbatch --parsable`. Raises ValueError: a tenant may replace it."""
    found = _JOB_ID.search(output[-SAID_BYTES:])
    if not found:
        raise ValueError("sbatch did not say the number of a job")
    return int(found[1])
