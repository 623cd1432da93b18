"""Every command block of the README, the guides and the how-to is run in order, as written (IAC-03)."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from neocloud.testing.emulator import Emulator, connected
from tests import leftovers
from tests.fast.guides.blocks import GUIDES, HOWTOS, ROOT, blocks_of
from tests.fast.services.inference.cloud import write_adapter, write_model
from tests.real.guides.readers import READERS
from tests.real.guides.session import Reader, environment_of, parts_of, reason_of, run_page

PAGES = [str(page.relative_to(ROOT)) for page in (ROOT / "README.md", *GUIDES, *HOWTOS)]
ALONE = ("README.md", "docs/guides/emulator.md", "docs/guides/getting-started.md")
RUN = [
    page
    for page in PAGES
    if any(not reason_of(part, READERS[page]) for block in blocks_of(ROOT / page) for part in parts_of(block))
]
_TEST = re.compile(r"tests/[\w/]+\.py(?:::\w+)?")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """One emulator for the pages that neither end it nor make what another page makes, too."""
    with _emulator(tmp_path_factory.mktemp("shared")) as running:
        yield running


@pytest.fixture
def cloud(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Emulator]:
    """The emulator of the page under test."""
    if request.node.callspec.params["page"] not in ALONE:
        yield request.getfixturevalue("shared")
        return
    with _emulator(tmp_path) as running:
        yield running


@contextmanager
def _emulator(folder: Path) -> Iterator[Emulator]:
    """An emulator that `neo up` started: with TLS and on free ports, which it remembers."""
    home = folder / "cloud"
    environment = _environment(folder, home)
    ports = [word for name in ("grpc", "http", "tls") for word in (f"--{name}-port", "0")]
    leftovers.record(home)
    try:
        _neo(environment, "up", "--emulator", "--tls", *ports)
        with connected(home) as running:
            yield running
    finally:
        if home.exists():
            _neo(environment, "destroy", "--yes")
        leftovers.forget(home)


def _neo(environment: Mapping[str, str], *arguments: str) -> None:
    subprocess.run(["neo", *arguments], env=environment, check=True, stdin=subprocess.DEVNULL, timeout=180)


@pytest.mark.parametrize("page", PAGES)
def test_no_command_is_listed_that_its_page_does_not_have(page: str) -> None:
    parts = [part for block in blocks_of(ROOT / page) for part in parts_of(block)]
    reader = READERS[page]
    for start in (*reader.not_run, *reader.between):
        assert any(part.startswith(start) for part in parts), f"{page} no longer has {start!r}"
    for reason in reader.not_run.values():
        for named in _TEST.findall(reason):
            file, _, function = named.partition("::")
            assert f"def {function}" in (ROOT / file).read_text(), named


@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page_work(page: str, cloud: Emulator, tmp_path: Path) -> None:
    folder = tmp_path / "reader"
    work = folder / "work"
    work.mkdir(parents=True)
    write_model(work / "bank-model")
    write_adapter(work / "polite-adapter")
    run_page(blocks_of(ROOT / page), _knowing(READERS[page], cloud), folder, _environment(folder, cloud.home))


def _knowing(reader: Reader, cloud: Emulator) -> Reader:
    """Return the reader with what the pages' placeholders stand for in this cloud."""
    known = {
        "PROJECT_ID": cloud.project_id,
        "tenant-...": cloud.tenant_id,
        "127.0.0.1:7370": cloud.endpoint,
        "127.0.0.1:7371": cloud.http_endpoint.removeprefix("http://"),
        "api.localhost:7372": f"api.localhost:{cloud.tls_endpoint.rpartition(':')[2]}",
        "/var/lib/neocloud": str(cloud.home),
    }
    return replace(reader, stands_for={**known, **reader.stands_for})


def _environment(folder: Path, home: Path) -> dict[str, str]:
    (folder / "me").mkdir(mode=0o700)
    return environment_of(folder / "me", folder / "cache", NEOCLOUD_HOME=str(home))
