import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from neocloud.core import contract
from neocloud.core.contract import cache
from neocloud.core.contract.build import ContractBuildError, _compile


def test_the_built_set_is_kept_under_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    contract.pool()
    path = contract.cache_path()
    assert path.exists()
    assert path.parent.name == "neocloud"


def test_builders_that_start_together_build_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def build() -> bytes:
        built.append(1)
        return b"descriptors"

    monkeypatch.setattr(cache, "_build_in_own_process", build)
    path = tmp_path / "folder" / "contract.binpb"
    with ThreadPoolExecutor(8) as threads:
        contents = list(threads.map(lambda _: cache.descriptor_set(path), range(8)))
    assert contents == [b"descriptors"] * 8
    assert len(built) == 1
    assert sorted(found.name for found in path.parent.iterdir()) == ["build.lock", "contract.binpb"]


def test_a_folder_that_cannot_be_written_costs_only_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(cache, "_build_in_own_process", lambda: b"descriptors")
    assert cache.descriptor_set(tmp_path / "file" / "contract.binpb") == b"descriptors"


def test_a_changed_proto_has_another_cache_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "neocloud").mkdir()
    source = tmp_path / "neocloud" / "a.proto"
    monkeypatch.setattr(cache, "proto_root", lambda: tmp_path)
    paths = []
    for text in ("one", "two"):
        source.write_text(text)
        cache.cache_path.cache_clear()
        paths.append(cache.cache_path())
    cache.cache_path.cache_clear()
    assert paths[0] != paths[1]


def test_a_broken_proto_is_named_with_the_compilers_words(tmp_path: Path) -> None:
    (tmp_path / "broken.proto").write_text('syntax = "proto3"; message {')
    with pytest.raises(ContractBuildError, match=r"broken\.proto:1:"):
        _compile(tmp_path, FileDescriptorSet())


def test_a_start_with_a_cache_does_not_load_the_clients() -> None:
    """The seconds of loading every published client are spent when building the cache, not at each start."""
    contract.pool()
    program = (
        "import sys; from neocloud.core import contract; contract.message('neocloud.slurm.v1.Cluster');"
        "assert not any(name.startswith(('nebius.api', 'grpc_tools')) for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
