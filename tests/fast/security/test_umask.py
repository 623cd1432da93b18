"""H9: the server makes files for its owner alone, but those that programs in containers read."""

import ast
import datetime
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from neocloud.cli.machine import images
from neocloud.control_plane import program
from neocloud.core.osfiles import make_folder
from neocloud.core.untrusted.files import Folder
from neocloud.core.untrusted.trees import stage_files
from neocloud.engines.manifest import (
    ConfigMapSource,
    Container,
    EmptyDir,
    HostPath,
    KeyToPath,
    Pod,
    VolumeClaim,
)
from neocloud.engines.podman import bootstrap, service
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.network.attachments import write_in_place
from neocloud.engines.podman.storage import mounts
from neocloud.engines.podman.storage.config_mounts import ConfigMounts
from neocloud.engines.podman.storage.volumes import Volumes, host_path
from neocloud.server.certificates import CertificateFolder, ensure_certificate
from neocloud.services.tuning.work_folder import WorkFolder
from tests import ROOT

SOURCE = ROOT / "src/neocloud"
CLAIM = VolumeClaim(name="disk", namespace="space", storage="1Gi")


@pytest.fixture(autouse=True)
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# What sets it


def test_the_server_sets_it_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of a real cloud does so, too: before the arguments are read."""
    seen = []

    def parse() -> None:
        seen.append(os.umask(0o022))
        raise SystemExit(2)

    os.umask(0o022)
    monkeypatch.setattr(program, "parse_arguments", parse)
    with pytest.raises(SystemExit):
        program.run()
    assert seen == [0o077]


def test_neo_up_sets_it_first(tmp_path: Path) -> None:
    """Also for what it makes above a state folder."""
    os.umask(0o022)
    program = (
        "import os, sys\n"
        "from neocloud.cli.commands import up\n"
        "def seen(home):\n"
        "    sys.exit(f'umask {os.umask(0):o}')\n"
        "up.emulator_home = seen\n"
        "from neocloud.cli.main import run\n"
        "run(['up', '--emulator'])\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "umask 77" in ran.stderr, ran.stderr


# What containers read through mounts


def test_volumes(tmp_path: Path) -> None:
    volumes = Volumes(Layout.of(tmp_path))
    volumes.ensure_claim(CLAIM)
    assert mode(volumes.claim_path("space", "disk")) == 0o755
    assert mode(volumes.scratch_path("space", "pod", "scratch", EmptyDir())) == 0o777


def test_the_upper_folder_of_an_overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mode is that of "/" in a shared root; one that a tenant changed stays."""
    monkeypatch.setattr(mounts, "_mount", lambda *_: None)
    lower, upper, work = (tmp_path / name for name in ("lower", "upper", "work"))
    mounts.mount_overlay(tmp_path / "merged", lower=lower, upper=upper, work=work)
    assert mode(upper) == 0o755
    upper.chmod(0o711)
    mounts.mount_overlay(tmp_path / "merged", lower=lower, upper=upper, work=work)
    assert mode(upper) == 0o711


def test_config_maps_and_hosts_files(tmp_path: Path) -> None:
    maps = ConfigMounts(tmp_path / "maps", "ConfigMap")
    maps.put("space", "settings", {"a": b"1"})
    view = maps.view("space", ConfigMapSource(name="settings", items=(KeyToPath("a", "inner/a"),)))
    assert [mode(path) for path in (view, view / "inner", view / "inner/a")] == [0o755, 0o755, 0o644]
    write_in_place(tmp_path / "names/hosts", "127.0.0.1 localhost\n")
    assert mode(tmp_path / "names/hosts") == 0o644


def test_folders_and_files_of_the_host_that_a_pod_asks_for(tmp_path: Path) -> None:
    pod = Pod(name="pod", namespace="space", containers=(Container(name="main", image="busybox"),))
    folder = HostPath(str(tmp_path / "a/folder"), "DirectoryOrCreate")
    file = HostPath(str(tmp_path / "file"), "FileOrCreate")
    assert mode(host_path(folder, pod)) == 0o755
    assert mode(host_path(file, pod)) == 0o644


def test_the_root_of_sandboxes(tmp_path: Path) -> None:
    bootstrap._make_sandbox(tmp_path / "sandbox", Path("/bin/true"))
    assert mode(tmp_path / "sandbox") == mode(tmp_path / "sandbox/etc") == 0o755
    assert mode(tmp_path / "sandbox/catatonit") & 0o005 == 0o005


def test_weights_that_are_laid(tmp_path: Path) -> None:
    source = tmp_path / "weights"
    make_folder(source)
    (source / "config.json").write_text("{}")
    (source / "config.json").chmod(0o644)
    make_folder(tmp_path / "shown/cluster")
    with Folder.open(source) as weights:
        stage_files(weights, tmp_path / "shown/cluster/model")
    assert mode(tmp_path / "shown/cluster") == mode(tmp_path / "shown/cluster/model") == 0o755
    assert mode(tmp_path / "shown/cluster/model/config.json") == 0o644
    assert mode(tmp_path / "shown") == 0o700


def test_the_folder_of_a_training_job(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "jobs/one")
    work.write_settings({"attempt": 1})
    work.add_event(1.0, "begun")
    assert mode(work.path) == 0o755
    assert mode(work.path / "job.json") == mode(work.path / "control.jsonl") == 0o644


def test_the_authority_that_clients_trust(tmp_path: Path) -> None:
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    ensure_certificate(tmp_path / "tls", ["localhost"], now)
    files = CertificateFolder(tmp_path / "tls")
    assert mode(files.authority) == 0o644
    assert mode(files.server_key) == mode(files.authority_key) == 0o600


# Children that make what containers read


@pytest.mark.parametrize("called", ["Podman", "builders", "mount"])
def test_children_that_make_files_for_others_get_the_usual_one(
    called: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class Started(Exception):
        pass

    def start(command: object, **options: object) -> None:
        seen.append(options.get("umask"))
        raise Started

    monkeypatch.setattr(subprocess, "run", start)
    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(Started):
        if called == "Podman":
            (tmp_path / "podman").mkdir()
            host = SimpleNamespace(podman="podman", podman_version="4.3.1")
            layout = Layout.of(tmp_path)
            monkeypatch.setattr(service, "environment", lambda _: {})
            service.PodmanService(layout, host)._start()  # pyright: ignore[reportArgumentType]
        elif called == "builders":
            images.build_image("slurm", tmp_path, lambda _: None)
        else:
            mounts.mount_tmpfs(tmp_path / "memory")
    assert seen == [0o022]


# New ones


UMASK_IS_RIGHT = {
    "engines/podman/bootstrap.py": 1,  # folders of ours, which hold what is mounted
    "engines/podman/network/attachments.py": 1,
    "engines/podman/layout.py": 1,
    "engines/podman/service.py": 1,  # Podman's own
    "engines/podman/storage/mounts.py": 2,  # an overlay's work folder; mount points
    "engines/podman/storage/config_mounts.py": 1,
    "engines/podman/storage/volumes.py": 2,  # scratch folders and copies; the next line sets the mode
    "services/compute/disk_import.py": 1,  # in the pod that checks a disk, where nobody else is
    "services/tuning/work_folder.py": 1,  # the folder of models
}
"""How many folders a file makes with the mode that the umask leaves, by file."""


def test_nothing_else_makes_a_folder_without_a_mode() -> None:
    """Code that makes one for containers calls `make_folder`; folders of the server are listed here."""
    found: dict[str, int] = {}
    for part in ("engines/podman", "services"):
        for path in sorted((SOURCE / part).rglob("*.py")):
            calls = [
                node
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("mkdir", "makedirs")
                and not any(keyword.arg == "mode" for keyword in node.keywords)
            ]
            if calls:
                found[path.relative_to(SOURCE).as_posix()] = len(calls)
    assert found == UMASK_IS_RIGHT
