"""Shared steps of the builds of models: fetch the package of a model, run a script over it in the shared
root, publish what the script wrote.

The script runs as a user without rights, without a network, in a root that it cannot change: what it reads
comes from others. Standard library only, as builder.py.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import builder


def shared_root(options: builder.Options) -> Path:
    """Return the root with the libraries for models. Raises BuildError where it is not built."""
    root = (options.folder.parent / "jail" / "rootfs").resolve()
    if not root.is_dir():
        raise builder.BuildError("The shared root reads the model. Build it first: neo image build jail")
    return root


def fetch_packages(requirements: str, folder: Path) -> None:
    """Unpack the packages into the folder. Their hashes are checked, and nothing of them is run."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", dir=folder.parent) as wanted:
        wanted.write(requirements)
        wanted.flush()
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--no-compile"]
        builder.run([*command, "--target", folder, "--requirement", wanted.name])


def run_in_root(root: Path, out: Path, script: str) -> None:
    """Run the script of this name, which lies in `out`, with `out` writable as its folder."""
    inside = out.parent / "root"
    inside.mkdir()
    for path in (out, *out.rglob("*")):
        path.chmod(0o777 if path == out else path.stat().st_mode | 0o444 | (0o111 if path.is_dir() else 0))
    steps = (
        'mount --bind "$1" "$2" && mount --bind "$3" "$2/mnt" && mount -o remount,bind,ro "$2" &&'
        ' mount -t proc proc "$2/proc" && exec chroot "$2" /usr/bin/setpriv --reuid 65534 --regid 65534'
        ' --clear-groups --no-new-privs /usr/bin/python3 "/mnt/$4"'
    )
    builder.run(
        [*builder.ISOLATED, "--net", "sh", "-c", steps, "convert", root, inside, out, script],
        {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/nonexistent", "LANG": "C.UTF-8"},
    )
    inside.rmdir()


def publish(model: Path, folder: Path) -> None:
    """Make `folder/model` what the script has written, readable by all and writable by root only."""
    for path in (model, *model.rglob("*")):
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise builder.BuildError(f"{path.name} of the converted model is neither a file nor a folder")
        os.chown(path, 0, 0)
        path.chmod(0o755 if path.is_dir() else 0o644)
    shutil.rmtree(folder / "model", ignore_errors=True)
    model.replace(folder / "model")
