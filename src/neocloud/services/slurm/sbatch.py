"""The command line that submits a job: the script on standard input, all else as arguments (rfd 0007)."""

from collections.abc import Iterable, Mapping, Sequence

DEFAULT_WORKING_DIRECTORY = "/home/shared"

_SUBMIT = """
script=$(mktemp) && cat >"$script" || exit 1
options=$1; shift
sbatch "${@:1:options}" "$script" "${@:options+1}"; code=$?
rm -f "$script"; exit $code
"""
"""$1 is the number of sbatch options that follow; the rest are the script's arguments."""


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
