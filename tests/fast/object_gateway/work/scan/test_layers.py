"""Packages in the layers of an image, and the result for hostile ones: an error, within limits."""

import gzip
import io
import json
import subprocess
import sys
import tarfile
from typing import Any

import pyarrow
import pytest

from neocloud.object_gateway.work.scan import layers
from neocloud.object_gateway.work.scan.inventory import Inventory
from neocloud.object_gateway.work.scan.layers import Unreadable, read_layers
from tests.fast.object_gateway.work.scan.layers import (
    BOOKWORM,
    RELEASE,
    STATUS,
    debian,
    framed,
    layer,
    package,
)

CURL = package("curl", "7.88.1-10")
SKIPPED = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"skip"
"""A frame of zstd that is no data."""


def zstd(content: bytes) -> bytes:
    return pyarrow.Codec("zstd").compress(content, asbytes=True)


def read(*given: bytes) -> Inventory:
    return read_layers(io.BytesIO(framed(given)))


def sources(*given: bytes) -> list[tuple[str, str]]:
    return read(*given).sources


@pytest.mark.parametrize("packed", [True, False])
def test_source_packages_of_what_is_installed(packed: bool) -> None:
    status = (
        CURL,
        package("libcurl4", "7.88.1-10+b1", "curl (7.88.1-10)"),
        package("libssl3", "3.0.11-1", "openssl"),
        package("gone", "1.0", status="deinstall ok config-files"),
    )
    found = read(layer(debian(*status), packed=packed))
    assert (found.release, found.packages) == ("bookworm", 3)
    assert found.sources == [("curl", "7.88.1-10"), ("openssl", "3.0.11-1")]


def test_layers_in_zstd_have_any_frames() -> None:
    archive = layer(debian(CURL), packed=False)
    half = len(archive) // 2
    several = zstd(archive[:half]) + SKIPPED + zstd(archive[half:]) + SKIPPED
    for packed in (zstd(archive), several, SKIPPED + several):
        assert sources(packed) == [("curl", "7.88.1-10")]


def test_images_without_dpkg_have_one_file_for_each_package() -> None:
    files = {
        RELEASE: BOOKWORM.encode(),
        "./var/lib/dpkg/status.d/base": b"Package: base-files\nVersion: 12.4\n",
        "./var/lib/dpkg/status.d/base.md5sums": b"not a package",
        "./var/lib/dpkg/status.d/tzdata": b"Package: tzdata\nVersion: 2024a\n",
    }
    assert sources(layer(files)) == [("base-files", "12.4"), ("tzdata", "2024a")]


def test_upper_layers_replace_and_remove() -> None:
    lower, upper = layer(debian(CURL)), layer({STATUS: package("zlib1g", "1.3", "zlib").encode()})
    assert sources(lower, upper) == [("zlib", "1.3")]
    for removed in (
        "var/lib/dpkg/.wh.status",
        "var/.wh.lib",
        ".wh.var",
        "var/lib/.wh..wh..opq",
        ".wh..wh..opq",
    ):
        assert sources(lower, layer({removed: b""})) == []
        both = layer({STATUS: CURL.encode(), removed: b""})
        assert sources(lower, both) == [("curl", "7.88.1-10")], "a layer removes what is below it"
    for path in ("var", "var/lib/dpkg", STATUS):
        assert sources(lower, layer({}, links={path: "/etc"})) == []


@pytest.mark.parametrize(
    "text", ["ID=ubuntu\nVERSION_CODENAME=jammy\n", "", "ID=debian\nVERSION_CODENAME=../x\n"]
)
def test_other_distributions_have_no_release(text: str) -> None:
    assert read(layer({RELEASE: text.encode(), STATUS: CURL.encode()})).release == ""


def test_links_are_not_followed() -> None:
    secret = layer({"secret": CURL.encode()}, links={STATUS: "secret", RELEASE: "/etc/os-release"})
    assert read(secret) == Inventory()


def bomb() -> bytes:
    return gzip.compress(layer({"zero": bytes(4 * 1024**2)}, packed=False), 9)


def large_header() -> bytes:
    """A pax header that says it has 8 GiB."""
    member = tarfile.TarInfo("pax")
    member.type, member.size = tarfile.XHDTYPE, 8 * 1024**3 - 1
    return member.tobuf(tarfile.USTAR_FORMAT) + bytes(4096)


def negative_size() -> bytes:
    raw = bytearray(tarfile.TarInfo(STATUS).tobuf(tarfile.GNU_FORMAT))
    raw[124:136] = b"\xff" * 12
    raw[148:156] = b"        "
    raw[148:156] = f"{sum(raw):06o}\0 ".encode()
    return bytes(raw) + bytes(2048)


@pytest.mark.parametrize(
    ("hostile", "why"),
    [
        (b"no archive" * 1000, "no tar archive"),
        (gzip.compress(b"no archive" * 1000), "no tar archive"),
        (layer(debian(CURL))[:-30], "damaged"),
        (b"\x1f\x8b" + b"\x00" * 600, "damaged"),
        (b"\x28\xb5\x2f\xfd" + b"\x00" * 600, "damaged"),
        (zstd(b"no archive" * 1000), "no tar archive"),
        (zstd(layer(debian(CURL), packed=False))[:-30], "damaged"),
        (layer({STATUS: b"Package: ../../x\nVersion: 1\n"}), "list of packages is damaged"),
        (layer({STATUS: b"Package: a\nVersion: 1; rm -rf\n"}), "list of packages is damaged"),
        (layer({STATUS: b"Package: a\nSource: b (\nVersion: 1\n"}), "list of packages is damaged"),
        (layer({STATUS: bytes(33 * 1024**2)}), "too large"),
        (layer({"a/" * 3000: b""}), "more than 4,096 characters"),
        (large_header(), "damaged"),
        (negative_size(), "damaged"),
    ],
    ids=range(14),
)
def test_hostile_layers_are_refused(hostile: bytes, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        read(hostile)
    with pytest.raises(Unreadable):
        read(layer(debian(CURL)), hostile)


def test_more_than_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unreadable, match="512 layers"):
        read(*[layer({})] * 513)
    with pytest.raises(Unreadable, match="20,000 packages"):
        read(layer(debian(*[package(f"p{each}", "1") for each in range(20_001)])))
    with pytest.raises(Unreadable, match="too large"):
        read(layer({f"var/lib/dpkg/status.d/{each}": b"" for each in range(4097)}))
    monkeypatch.setattr(layers, "MAX_UNPACKED_BYTES", 1024**2)
    with pytest.raises(Unreadable, match="more than 1,048,576 bytes"):
        read(bomb())
    monkeypatch.setattr(layers, "MAX_ENTRIES", 10)
    with pytest.raises(Unreadable, match="more than 10 files"):
        read(*[layer({f"{each}": b"" for each in range(6)})] * 2)


@pytest.mark.parametrize("length", [b"\x00", b"\xff" * 8, (500).to_bytes(8, "big") + b"short"])
def test_a_cut_off_pipe_is_an_error(length: bytes) -> None:
    with pytest.raises(Unreadable, match="ends early"):
        read_layers(io.BytesIO(length))


def run(given: bytes, *, code: str = "") -> Any:
    command = [sys.executable, "-I", *(["-c", code] if code else ["-m", layers.__name__])]
    return subprocess.run(command, input=given, capture_output=True, env={}, cwd="/", timeout=60, check=False)


def test_the_process_reads_an_image_and_can_do_nothing_else() -> None:
    done = run(framed([layer(debian(CURL))]))
    assert json.loads(done.stdout) == {
        "release": "bookworm",
        "packages": 1,
        "sources": [["curl", "7.88.1-10"]],
    }
    large = zstd(layer({"zero": bytes(64 * 1024**2), **debian(CURL)}, packed=False))
    assert json.loads(run(framed([large])).stdout)["packages"] == 1
    assert json.loads(run(framed([b"x" * 1000])).stdout)["problem"] == "a layer is no tar archive, or damaged"
    tries = (
        "open('/etc/shadow').read()",
        "__import__('tempfile').TemporaryFile(buffering=0).write(b'x')",
        "__import__('os').fork()",
        "bytes(1024**3)",
    )
    for each in tries:
        code = (
            f"from neocloud.object_gateway.work.scan.layers import _give_up_rights\n_give_up_rights()\n{each}"
        )
        assert run(b"", code=code).returncode != 0, each
