"""`neo fleet scorecard`: criteria of ClusterMAX with verdicts, and what each comes from."""

import re
import stat
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, JsonObject, OutputOption, counted, say, show, table
from neocloud.cli.scorecard.cloud_evidence import of_cloud
from neocloud.cli.scorecard.criteria import CRITERIA, SOURCE, Tier
from neocloud.cli.scorecard.fleet_records import read_records
from neocloud.cli.scorecard.scorecard import (
    MOST_CHARACTERS,
    Evidence,
    Rating,
    ReportError,
    Row,
    Score,
    by_criterion,
    rating,
    read_report,
    scorecard,
)
from neocloud.cli.target import profile_of
from neocloud.client.connection import connect
from neocloud.client.errors import ClientError

_ATTESTED = re.compile(r"([A-Z]{3}-\d)=(.{1,300})")

app = command_group()


@app.command("scorecard")
def show_scorecard(
    context: typer.Context,
    audit: Annotated[
        list[Path] | None,
        typer.Option(
            help="Report of the auditor: cmax audit ... -vvv > FILE; may be repeated.", metavar="FILE"
        ),
    ] = None,
    attest: Annotated[
        list[str] | None,
        typer.Option(help="Attest a criterion by a document; repeatable.", metavar="ID=TEXT"),
    ] = None,
    no_cloud: Annotated[bool, typer.Option("--no-cloud", help="Ask no cloud for its records.")] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Rate this cloud by the criteria of ClusterMAX: pass, partial, fail, attest or not_run, with evidence.

    A criterion without evidence is not_run, never a pass. The evidence is what the cloud's records show of
    nodes, drains, metrics, clusters, storage and the audit log (operators alone may read them all), reports
    of ClusterMAX's auditor, and what you attest. The worst of them counts. Records that cannot be read are
    not_run, with the reason. Evidence of the auditor names what it looked at: slurm, vm, standalone, k8s,
    container or local.

    Examples:

      neo fleet scorecard
      neo fleet scorecard --audit report.txt --attest "SEC-1=SOC 2 Type II, report of May 2026"
      neo fleet scorecard --audit slurm.txt --audit vm.txt --audit host.txt --no-cloud --output json
    """
    found: dict[str, list[Evidence]] = {criterion.id: [] for criterion in CRITERIA}
    for text in attest or ():
        identifier, said = _attestation(text, found)
        found[identifier].append(Evidence("document", Score.PASS, said))
    checks = [each for path in audit or () for each in _report(path)]
    for identifier, several in by_criterion(checks).items():
        found[identifier] += several
    if not no_cloud:
        for identifier, several in _records_of(context).items():
            found[identifier] += several
    rows = scorecard(found)
    used = {each.check for row in rows for each in row.evidence}
    others = {each.check for each in checks if each.check not in used}
    document = {
        "source": SOURCE,
        "criteria": [_document(row) for row in rows],
        "rating": _rating_document(rating(rows)),
        "other_checks": len(others),
    }
    lines = (
        (row.criterion.id, row.score, row.criterion.tier, row.criterion.title, _why(row)) for row in rows
    )
    show(output, document, table(["ID", "SCORE", "TIER", "CRITERION", "EVIDENCE"], lines))
    if output is Format.TABLE:
        _say_sums(rows, others)


def _attestation(text: str, known: Iterable[str]) -> tuple[str, str]:
    match = _ATTESTED.fullmatch(text)
    if match is None or match[1] not in known:
        raise ClientError(
            "INVALID_ARGUMENT",
            f'--attest: {text[:50]!r} is not "ID=TEXT" with the id of a criterion, e.g. SEC-1',
        )
    return match[1], f"attested: {match[2]}"


def _report(path: Path) -> list[Evidence]:
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise ClientError("INVALID_ARGUMENT", f"--audit: {path} is not a plain file")
        with path.open(encoding="utf-8", errors="replace") as file:
            return read_report(file.read(MOST_CHARACTERS + 1), datetime.fromtimestamp(about.st_mtime, UTC))
    except ReportError as error:
        raise ClientError(
            "INVALID_ARGUMENT", f"--audit: {path} is not a whole report of cmax audit: {error}"
        ) from None
    except OSError as error:
        raise ClientError("NOT_FOUND", f"--audit: {path} cannot be read: {error.strerror}") from None


def _records_of(context: typer.Context) -> dict[str, list[Evidence]]:
    """Return what the records of the cloud show. Raises ClientError where no cloud answers at all."""
    profile = profile_of(context)
    with connect(profile) as client:
        return of_cloud(read_records(client, profile), datetime.now(UTC))


def _why(row: Row) -> str:
    decisive = row.decisive()
    if decisive is None:
        return "needs a document" if row.score is Score.ATTEST else ""
    more = len(row.evidence) - 1
    source = f"{decisive.source} ({decisive.harness})" if decisive.harness else decisive.source
    return f"{source}: {decisive.text}" + (f" (+{more})" if more else "")


def _document(row: Row) -> JsonObject:
    return {
        "id": row.criterion.id,
        "title": row.criterion.title,
        "tier": row.criterion.tier.value,
        "score": row.score.value,
        "evidence": [
            {
                "source": each.source,
                "score": each.score.value,
                "text": each.text,
                "at": each.at.isoformat() if each.at else None,
                "check": each.check or None,
                "harness": each.harness or None,
            }
            for each in row.evidence
        ],
    }


def _rating_document(found: Rating) -> JsonObject:
    return {
        "tier": _tier_name(found.reached) if found.reached else None,
        "next": _tier_name(found.next) if found.next else None,
        "missing": [row.criterion.id for row in found.missing],
        "is_underperforming": found.is_underperforming,
    }


def _standing(found: Rating) -> str:
    missing = [f"{row.criterion.id} ({row.score})" for row in found.missing]
    if found.is_underperforming:
        return f"Rating: it underperforms. Every cloud needs: {', '.join(missing)}."
    reached = f"{_tier_name(found.reached)} is shown" if found.reached else "no tier is shown"
    if found.next is None:
        return f"Rating: {reached}, the highest."
    return f"Rating: {reached}. {_tier_name(found.next).capitalize()} needs: {', '.join(missing)}."


def _tier_name(tier: Tier) -> str:
    return "bronze" if tier is Tier.ALL else tier.value


def _say_sums(rows: Sequence[Row], others: Collection[str]) -> None:
    counts = ", ".join(
        f"{count} {score}" for score in Score if (count := sum(row.score is score for row in rows))
    )
    say(f"\n{counted(len(rows), 'criterion').replace('criterions', 'criteria')}: {counts}.")
    say(_standing(rating(rows)))
    if others:
        say(f"{counted(len(others), 'check')} of the auditor belong to no criterion here.")
