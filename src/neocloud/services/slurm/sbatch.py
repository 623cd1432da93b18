"""The command line that submits a job: the script on standard input, all else as arguments (rfd 0007)."""

import re
from collections.abc import Iterable, Mapping, Sequence

DEFAULT_WORKING_DIRECTORY = "/home/shared"

_SUBMIT = """
script=$(mktemp) && cat >"$script" || exit 1
options=$1; shift
sbatch "${@:1:options}" "$script" "${@:options+1}"; code=$?
rm -f "$script"; exit $code
"""
"""$1 is the number of sbatch options that follow; the rest are the script's arguments."""


_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STEERS_PROGRAMS = re.compile(
    r"LD_.*|GCONV_PATH|LOCPATH|NLSPATH|HOSTALIASES|RES_OPTIONS|MALLOC_.*|GLIBC_TUNABLES"
    r"|ENV|BASH_.*|BASHOPTS|SHELLOPTS|PS4|IFS|PYTHON(HOME|STARTUP|INSPECT)|PERL5(OPT|LIB)"
)
"""Names that make the loader, the C library or an interpreter run code before the first line of a program.
A job's script sets them itself where it needs them; then they reach nothing but the job."""


def environment_problem(names: Iterable[str]) -> str | None:
    """What is wrong with the first name that a submitted job may not set in its environment."""
    for name in names:
        if not _ENVIRONMENT_NAME.fullmatch(name):
            return f'"{name}" is no name of an environment variable'
        if _STEERS_PROGRAMS.fullmatch(name):
            return f'"{name}" changes what programs load before they start; export it in the script instead'
    return None


def sbatch_command(
    options: Sequence[str], arguments: Iterable[str], environment: Mapping[str, str]
) -> list[str]:
    """To be run on the login node."""
    variables = [f"{name}={value}" for name, value in sorted(environment.items())]
    shell = ["/bin/bash", "-l", "-c", _SUBMIT, "sbatch", str(len(options))]
    return ["/usr/bin/env", *variables, *shell, *options, *arguments]


def job_id_in(output: bytes) -> int:
    """Of what `sbatch --parsable` says."""
    return int(output.decode().strip().split(";")[0])
