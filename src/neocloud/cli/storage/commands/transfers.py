"""`neo storage cp`, `mv` and `sync`: copy between this machine and buckets, or between buckets."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neocloud.cli.output import Format, OutputOption, counted, fields_table, say, show, size_text
from neocloud.cli.resources.lookup import ProjectOption
from neocloud.cli.storage.commands.objects import DryRunOption
from neocloud.cli.storage.commands.streams import STREAM, copy_stream
from neocloud.cli.storage.places import Place, place_of
from neocloud.cli.storage.session import EnvKeyOption, s3_session
from neocloud.cli.terminal import echo, exit_code, one_line, report
from neocloud.client.errors import ClientError
from neocloud.core.s3_calls import S3

if TYPE_CHECKING:
    from neocloud.cli.storage.plan import Plan
    from neocloud.cli.storage.runner import Outcome

INTERRUPTED = 130
KIB = 1024
FEW_NAMES = 5
SourceArgument = Annotated[str, typer.Argument(help="A path, or s3://BUCKET/KEY.", metavar="SOURCE")]
TargetArgument = Annotated[str, typer.Argument(help="A path, or s3://BUCKET/KEY.", metavar="TARGET")]
StreamSourceArgument = Annotated[
    str, typer.Argument(help="A path, s3://BUCKET/KEY, or - for stdin.", metavar="SOURCE")
]
StreamTargetArgument = Annotated[
    str, typer.Argument(help="A path, s3://BUCKET/KEY, or - for stdout.", metavar="TARGET")
]
RecursiveOption = Annotated[
    bool, typer.Option("--recursive", "-r", help="Copy all that is in a folder; links are left out.")
]


def cp(
    context: typer.Context,
    source: StreamSourceArgument,
    target: StreamTargetArgument,
    recursive: RecursiveOption = False,
    dry_run: DryRunOption = False,
    project: ProjectOption = "",
    env_key: EnvKeyOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Copy a file to an object, an object to a file, or an object to another.

    Checksums are verified. With --recursive, what is at the target already, with the same size and checksum,
    is not copied again: after an interruption run the same command again.

    A place that is - is standard input or output. Input becomes an object once it has ended; so use
    `set -o pipefail`, and delete the object where the program before the pipe failed.

    Examples:

      neo storage cp train.jsonl s3://data-sets/train/
      neo storage cp s3://data-sets/train/ ./train --recursive
      neo storage cp s3://data-sets/model.bin s3://archive/model.bin
      tar c ./run1 | neo storage cp - s3://archive/run1.tar
      neo storage cp s3://archive/run1.tar - | tar x
    """
    if STREAM in (source, target):
        if recursive or dry_run:
            raise ClientError(
                "INVALID_ARGUMENT", "- is one stream of bytes", "Leave out --recursive and --dry-run"
            )
        with s3_session(context, project, env_key=env_key) as s3:
            copy_stream(s3, source, target, output)
        return
    with s3_session(context, project, env_key=env_key) as s3:
        _run(s3, place_of(source), place_of(target), output, recursive=recursive, is_dry=dry_run)


def mv(
    context: typer.Context,
    source: SourceArgument,
    target: TargetArgument,
    recursive: RecursiveOption = False,
    dry_run: DryRunOption = False,
    project: ProjectOption = "",
    env_key: EnvKeyOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Copy as cp does, and delete each source after its copy was verified.

    Objects cannot be renamed: each is copied, within the cloud without moving its bytes, and then deleted.

    Examples:

      neo storage mv results.csv s3://data-sets/results/
      neo storage mv s3://data-sets/old/ s3://data-sets/new/ --recursive
    """
    with s3_session(context, project, env_key=env_key) as s3:
        places = place_of(source), place_of(target)
        _run(s3, *places, output, recursive=recursive, is_dry=dry_run, is_move=True)


def sync(
    context: typer.Context,
    source: SourceArgument,
    target: TargetArgument,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete at the target what is not at the source.")
    ] = False,
    dry_run: DryRunOption = False,
    project: ProjectOption = "",
    env_key: EnvKeyOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Make a folder like another: copy what is missing or different, with --delete also remove the rest.

    Files and objects are compared by size and checksum, not by time.

    Examples:

      neo storage sync ./checkpoints s3://data-sets/checkpoints
      neo storage sync s3://data-sets/checkpoints ./checkpoints --delete --dry-run
    """
    with s3_session(context, project, env_key=env_key) as s3:
        places = place_of(source), place_of(target)
        _run(s3, *places, output, recursive=True, is_dry=dry_run, is_sync=True, delete=delete)


def _run(
    s3: S3,
    source: Place,
    target: Place,
    output: Format,
    *,
    recursive: bool,
    is_dry: bool,
    is_move: bool = False,
    is_sync: bool = False,
    delete: bool = False,
) -> None:
    from neocloud.cli.storage import plan  # noqa: PLC0415  botocore takes a while to load

    with ExitStack() as open_files:
        try:
            if recursive:
                found = plan.folder(s3, source, target, open_files, is_sync=is_sync, is_dry=is_dry)
            else:
                found = plan.one(s3, source, target, open_files)
            _refuse_to_empty(found, source, delete=delete)
            outcome = _carry_out(s3, found, is_dry=is_dry, is_move=is_move, delete=delete)
        except OSError as error:
            raise ClientError(
                "FAILED_PRECONDITION", f"{error.filename or 'A file'}: {error.strerror or error}"
            ) from error
    _show(found, outcome, output, is_dry=is_dry, word="moved" if is_move else "copied")


def _refuse_to_empty(found: "Plan", source: Place, *, delete: bool) -> None:
    if delete and found.unwanted and not found.pairs:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"There is nothing at {source}, so --delete would delete all {len(found.unwanted):,} files at the"
            " target",
            "Check the source; `neo storage rm --recursive` empties a folder",
        )


def _carry_out(s3: S3, found: "Plan", *, is_dry: bool, is_move: bool, delete: bool) -> "Outcome":
    from neocloud.cli.storage.copier import Copier  # noqa: PLC0415
    from neocloud.cli.storage.deletion import delete_all  # noqa: PLC0415
    from neocloud.cli.storage.runner import Meter, Outcome, copy_all  # noqa: PLC0415

    outcome = Outcome()
    for problem in found.problems:
        outcome.fail("", ClientError("FAILED_PRECONDITION", problem))
    meter = Meter("Moving" if is_move else "Copying", found.size)
    copier = Copier(s3, found.source, found.target, meter.count)
    if is_dry:
        _show_intent(found, copier, outcome, is_move=is_move, delete=delete)
        return outcome
    try:
        copy_all(copier, found.pairs, meter, outcome, remove_source=is_move)
    except KeyboardInterrupt:
        done = f"{outcome.copied + outcome.unchanged} of {counted(len(found.pairs), 'file')}"
        report(f"interrupted after {done}. The same command continues; no unfinished upload was left.")
        raise typer.Exit(INTERRUPTED) from None
    if outcome.is_given_up:
        say("Too many failed; the rest was not tried.")
    if delete and outcome.failures:
        say("Nothing was deleted, because not all could be copied.")
    elif delete:
        delete_all(s3, found.target, found.unwanted, outcome)
    return outcome


def _show_intent(found: "Plan", copier: Any, outcome: "Outcome", *, is_move: bool, delete: bool) -> None:
    for pair in found.pairs:
        if copier.is_there(pair):
            outcome.unchanged += 1
        else:
            echo(one_line(f"would {'move' if is_move else 'copy'} {copier.show(pair)}"))
            outcome.copied += 1
            outcome.copied_bytes += pair.size
    for name in found.unwanted if delete else ():
        echo(one_line(f"would delete {found.target.show(name)}"))
        outcome.deleted += 1
    copier.close()


def _show(found: "Plan", outcome: "Outcome", output: Format, *, is_dry: bool, word: str) -> None:
    if found.left_out:
        names = ", ".join(found.left_out[:FEW_NAMES]) + (" ..." if len(found.left_out) > FEW_NAMES else "")
        say(f"Left out {len(found.left_out):,}, since links are not followed: {names}")
    document = {
        **{"copied": outcome.copied, "copied_bytes": outcome.copied_bytes, "unchanged": outcome.unchanged},
        **{"deleted": outcome.deleted, "left_out": list(found.left_out), "failures": outcome.failures},
    }
    if output is not Format.TABLE:
        show(output, document, fields_table(()))
    else:
        size = (
            size_text(outcome.copied_bytes)
            if outcome.copied_bytes >= KIB
            else f"{outcome.copied_bytes} bytes"
        )
        words = [f"{counted(outcome.copied, 'file')} {word} ({size})"]
        words += [f"{outcome.unchanged:,} there already"] if outcome.unchanged else []
        words += [f"{outcome.deleted:,} deleted"] if outcome.deleted else []
        words += [f"{len(outcome.failures):,} failed"] if outcome.failures else []
        echo(f"{'Nothing was changed. It would be: ' if is_dry else ''}{', '.join(words)}.")
    if outcome.failures:
        raise typer.Exit(exit_code(next(iter(outcome.codes)) if len(outcome.codes) == 1 else ""))
