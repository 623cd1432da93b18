"""From pushed layers and the operator's file to reports, by the processes that read both."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from neocloud.messages.neocloud.registry.v1 import VulnerabilityReport

from neocloud.object_gateway.oci.documents import read_manifest
from neocloud.object_gateway.work.scan import advisories, scanner
from neocloud.object_gateway.work.scan.reports import ReportReader
from neocloud.object_gateway.work.scan.scanner import Scanner
from neocloud.object_store.image_types import Manifest, NewManifest
from neocloud.object_store.store import ObjectStore
from neocloud.object_store.types import Bucket
from neocloud.testing.waiting import FakeClock
from tests.fast.object_gateway.oci.client import INDEX, MANIFEST, index, manifest
from tests.fast.object_gateway.oci.test_collection import APP, make_registry, upload
from tests.fast.object_gateway.work.scan.layers import RELEASE, STATUS, debian, layer, package
from tests.fast.object_gateway.work.scan.test_advisories import TRACKER
from tests.fast.object_store.stores import opened, read

pytestmark = pytest.mark.slow

CURL = package("libcurl4", "1.0-1+b2", "curl (1.0-1)")


@dataclass
class Home:
    folder: Path
    store: ObjectStore
    registry: Bucket
    scanner: Scanner

    def advise(self, document: Any, at: int = 1_700_000_000) -> None:
        file = advisories.provided_file(self.folder)
        file.parent.mkdir(exist_ok=True)
        file.write_text(document if isinstance(document, str) else json.dumps(document))
        os.utime(file, (at, at))

    async def push(self, *layers: bytes, **more: Any) -> Manifest:
        for each in (b"{}", *layers):
            await upload(self.store, self.registry, each)
        return await self.put(manifest(b"{}", *layers, **more), MANIFEST)

    async def put(self, body: bytes, kind: str) -> Manifest:
        new: NewManifest = read_manifest(body, kind)
        return await self.store.put_manifest(self.registry.id, APP, new, body)

    def report(self, image: Manifest) -> VulnerabilityReport:
        return ReportReader(self.folder).report(image.id)

    def states(self, *images: Manifest) -> list[tuple[str, str]]:
        reports = [self.report(each) for each in images]
        return [(each.State.Name(each.state), each.reason) for each in reports]


@pytest.fixture
async def home(tmp_path: Path):
    clock = FakeClock()
    async with opened(tmp_path / "objects", clock) as store:
        registry = await make_registry(store)
        index = advisories.index_file(tmp_path / "objects")
        reader = Scanner(store, clock, advisories.provided_file(tmp_path), index)
        yield Home(tmp_path, store, registry, reader)


async def test_a_report_of_an_image(home: Home) -> None:
    image = await home.push(layer(debian()), layer({STATUS: CURL.encode()}))
    await home.scanner.round()
    assert home.states(image) == [("NOT_RUN", "The operator of this cloud has provided no advisories.")]
    home.advise(TRACKER)
    await home.scanner.round()
    found = home.report(image)
    assert (found.State.Name(found.state), found.release, found.package_count) == ("COMPLETE", "bookworm", 1)
    assert (found.vulnerability_count, found.advisories_at.seconds) == (3, 1_700_000_000)
    first = found.vulnerabilities[0]
    assert (first.id, first.source_package, first.installed_version, first.fixed_version) == (
        "CVE-2026-0001",
        "curl",
        "1.0-1",
        "1.0-2",
    )


async def test_newer_advisories_count_at_once_and_damaged_ones_do_not(home: Home) -> None:
    home.advise(TRACKER)
    image = await home.push(layer(debian(CURL)))
    await home.scanner.round()
    home.advise("{", at=1_800_000_000)
    await home.scanner.round()
    assert home.report(image).advisories_at.seconds == 1_700_000_000
    home.advise({"curl": {"CVE-2027-1": TRACKER["curl"]["CVE-2026-0002"]}}, at=1_900_000_000)
    await home.scanner.round()
    assert [each.id for each in home.report(image).vulnerabilities] == ["CVE-2027-1"]
    assert read(home.folder / "objects", "SELECT count(*) FROM image_packages") == [(1,)]
    advisories.provided_file(home.folder).unlink()
    await home.scanner.round()
    assert home.states(image)[0][0] == "NOT_RUN"


async def test_what_has_no_report_says_why(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.advise(TRACKER)
    honest = await home.push(layer(debian(CURL)))
    hostile = await home.push(layer({STATUS: b"Package: ../x\nVersion: 1\n"}))
    other = await home.push(layer({"etc/os-release": b"ID=alpine\n"}))
    woody = {RELEASE: b"ID=debian\nVERSION_CODENAME=woody\n"}
    old = await home.push(layer({**debian(CURL), **woody}))
    chart = await home.push(b"chart", config_type="application/vnd.cncf.helm.config.v1+json")
    both = await home.put(index((await _content(home, honest)), (await _content(home, other))), INDEX)
    await home.scanner.round()
    no_image = "It is not an image: see the reports of the images that the index names."
    assert home.states(honest, hostile, other, old, chart, both) == [
        ("COMPLETE", ""),
        ("FAILED", "The image could not be read: the list of packages is damaged."),
        ("NOT_RUN", "The image is not based on Debian, or has no list of packages."),
        ("NOT_RUN", "The advisories say nothing of the release woody."),
        ("NOT_RUN", no_image),
        ("NOT_RUN", no_image),
    ]
    monkeypatch.setattr(scanner, "IMAGE_SECONDS", 0.0)
    slow = await home.push(layer(debian(CURL, package("more", "1"))))
    assert home.states(slow) == [("NOT_RUN", "The image was not read yet. Ask again in a minute.")]
    await home.scanner.round()
    assert home.states(slow)[0][0] == "FAILED"


async def _content(home: Home, image: Manifest) -> bytes:
    async with await home.store.open_manifest(home.registry.id, APP, image.digest) as reader:
        return b"".join([chunk async for chunk in reader])


async def test_what_was_read_goes_with_the_image(home: Home) -> None:
    home.advise(TRACKER)
    image = await home.push(layer(debian(CURL)))
    await home.scanner.round()
    await home.store.delete_manifest(home.registry.id, APP, image.digest)
    assert read(home.folder / "objects", "SELECT count(*) FROM image_packages") == [(0,)]
    again = await home.push(layer(debian(CURL)))
    assert again.id == image.id
    await home.scanner.round()
    assert home.states(again) == [("COMPLETE", "")]


async def test_an_image_that_cannot_be_read_from_disk_keeps_no_other_waiting(home: Home) -> None:
    home.advise(TRACKER)
    noise = layer({"noise": os.urandom(300_000)})
    damaged = await home.push(noise)
    blobs = [each for each in (home.folder / "objects" / "blobs").rglob("*") if each.is_file()]
    for each in blobs:
        content = bytearray(each.read_bytes())
        content[len(content) // 2] ^= 1
        each.chmod(0o600)
        each.write_bytes(content)
    honest = await home.push(layer(debian(CURL)))
    await home.scanner.round()
    assert blobs and [each for each, _ in home.states(damaged, honest)] == ["FAILED", "COMPLETE"]


def test_servers_start_without_arrow() -> None:
    """It takes 36 MB and 0.4 s; layers and inventories in Parquet load it where they need it (rfd 0042)."""
    modules = "neocloud.control_plane.program, neocloud.object_gateway.__main__"
    code = f"import sys, {modules}; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=240, check=False).returncode == 0
