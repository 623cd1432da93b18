"""Reports of known vulnerabilities, from what was read of an image and the advisories of now. Another process
than the object gateway may make them."""

from pathlib import Path

from neocloud.core import contract
from neocloud.data_plane.gateway_keys import object_gateway_folder
from neocloud.messages.neocloud.registry.v1 import VulnerabilityReport
from neocloud.object_gateway.work.scan import advisories, packages
from neocloud.object_gateway.work.scan.advisories import Finding
from neocloud.object_gateway.work.scan.packages import IMAGE_TYPES, Outcome, ReadImage
from neocloud.object_store.artifacts import ArtifactReader
from neocloud.object_store.metadata.connection import Connection

MAX_FINDINGS = 5000
"""The most findings of one report."""
State = VulnerabilityReport.State
NOT_RUN, FAILED, COMPLETE = (State.Value(each) for each in ("NOT_RUN", "FAILED", "COMPLETE"))


class ReportReader:
    """Its methods block."""

    def __init__(self, home: Path) -> None:
        """`home` is the state folder of the cloud."""
        self._index = advisories.index_file(object_gateway_folder(home))
        self._artifacts = ArtifactReader(home)

    def report(self, artifact_id: str) -> VulnerabilityReport:
        """Return what is known now of an artifact that is there."""
        report = VulnerabilityReport(artifact_id=artifact_id, state=NOT_RUN)
        if not self._index.exists():
            report.reason = "The operator of this cloud has provided no advisories."
            return report
        with self._artifacts.reading() as connection:
            found = None if connection is None else _find(connection, artifact_id)
        if found is None:
            report.reason = "It is not an image: see the reports of the images that the index names."
            return report
        (image,) = found
        if image is None:
            report.reason = "The image was not read yet. Ask again in a minute."
            return report
        report.scanned_at.CopyFrom(contract.timestamp(image.read_at))
        if image.outcome is Outcome.UNREADABLE:
            report.state, report.reason = FAILED, f"The image could not be read: {image.problem}."
            return report
        self._judge(report, image)
        return report

    def _judge(self, report: VulnerabilityReport, image: ReadImage) -> None:
        inventory = image.inventory
        report.release, report.package_count = inventory.release, inventory.packages
        if not inventory.release or not inventory.packages:
            report.reason = "The image is not based on Debian, or has no list of packages."
            return
        found = advisories.findings(self._index, inventory.release, inventory.sources)
        if found is None:
            report.reason = f"The advisories say nothing of the release {inventory.release}."
            return
        at, findings = found
        report.state, report.vulnerability_count = COMPLETE, len(findings)
        report.advisories_at.CopyFrom(contract.timestamp(at))
        for each in findings[:MAX_FINDINGS]:
            _add(report, each)


def _add(report: VulnerabilityReport, found: Finding) -> None:
    report.vulnerabilities.add(
        id=found.id,
        source_package=found.source,
        installed_version=found.version,
        fixed_version=found.fixed_version,
        urgency=found.urgency,
        status=found.status,
    )


def _find(connection: Connection, artifact_id: str) -> tuple[ReadImage | None] | None:
    """Return what was read of an artifact; None where it is not an image."""
    row = connection.execute(
        "SELECT bucket.id, manifest.digest FROM manifest JOIN bucket ON bucket.number = manifest.bucket"
        " WHERE manifest.id = ? AND manifest.artifact_type IN (?, ?)",
        (artifact_id, *IMAGE_TYPES),
    ).fetchone()
    return None if row is None else (packages.find(connection, *row),)
