"""Files of a certificate and its key that change, cannot be used, or cannot be read for a moment."""

import datetime
import errno
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from neocloud.data_plane import certificate_files
from neocloud.data_plane.certificate_files import CertificateFiles, CertificateUnusable
from neocloud.server import ensure_certificate

NAMES = ("localhost", "127.0.0.1")
NOW = datetime.datetime.now(datetime.UTC)


def replace(file: Path, content: bytes) -> None:
    """Replace a file as editors and `write_file` do. A write in place that follows the last one within the
    kernel's clock tick leaves the times as they were."""
    written = file.with_suffix(".new")
    written.write_bytes(content)
    written.replace(file)


def test_files_that_do_not_go_together_change_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ensure_certificate(tmp_path / "first", NAMES, NOW)
    second = ensure_certificate(tmp_path / "second", NAMES, NOW)
    files = CertificateFiles(first.chain_file, first.key_file)
    loaded = files.load()
    monkeypatch.setattr(certificate_files, "WARN_AFTER_SECONDS", 0.0)
    replace(first.chain_file, second.chain)
    assert files.load() is loaded and files.load() is loaded
    assert len(caplog.records) == 1, "it is said once"
    assert "is still served" in caplog.text
    replace(first.key_file, second.key)
    assert files.load().chain == second.chain
    first.chain_file.unlink()
    assert files.load().chain == second.chain and files.load().chain == second.chain
    assert len(caplog.records) == 2, "a missing file is said once, not for each connection"


def test_a_renewal_under_way_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = (ensure_certificate(tmp_path / name, NAMES, NOW) for name in ("first", "second"))
    files = CertificateFiles(first.chain_file, first.key_file)
    loaded = files.load()
    replace(first.key_file, second.key)
    assert files.load() is loaded
    replace(first.chain_file, second.chain)
    assert files.load().chain == second.chain
    assert not caplog.records


def test_files_that_cannot_be_opened_for_a_moment_are_read_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (ensure_certificate(tmp_path / name, NAMES, NOW) for name in ("first", "second"))
    files = CertificateFiles(first.chain_file, first.key_file)
    loaded = files.load()
    replace(first.key_file, second.key)
    replace(first.chain_file, second.chain)

    def too_many(path: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", too_many)
        assert files.load() is loaded
    assert files.load().chain == second.chain


def test_a_key_with_a_passphrase_changes_nothing(tmp_path: Path) -> None:
    made = ensure_certificate(tmp_path, NAMES, NOW)
    files = CertificateFiles(made.chain_file, made.key_file)
    loaded = files.load()
    replace(made.key_file, sealed(made.key))
    assert files.load() is loaded


def sealed(key: bytes) -> bytes:
    """Return a private key under a passphrase."""
    return serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )


def test_files_that_never_could_be_used_are_an_error(tmp_path: Path) -> None:
    files = CertificateFiles(tmp_path / "chain.pem", tmp_path / "key.pem")
    for _ in range(2):
        with pytest.raises(CertificateUnusable, match=r"chain.pem and .*key.pem, cannot be used"):
            files.load()
    made = ensure_certificate(tmp_path, NAMES, NOW)
    assert CertificateFiles(made.chain_file, made.key_file).load().key == made.key
