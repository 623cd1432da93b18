"""What must be there before the first pod: folders, the sandbox, the resolver file, the tmpfs for secrets.

Blocking and repeatable; runs once per engine object, so also after a reboot that took the mounts away.
"""

import shutil
from pathlib import Path

from neocloud.core.osfiles import make_folder
from neocloud.engines.base import EngineError
from neocloud.engines.podman.host import Host
from neocloud.engines.podman.hostsfile import resolver_configuration, write_in_place
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.mounts import mount_tmpfs

_SANDBOX_FOLDERS = ("dev", "etc", "proc", "run", "sys", "tmp")


def prepare(layout: Layout, host: Host) -> None:
    try:
        for folder in (layout.engine, layout.namespaces, layout.volumes):
            folder.mkdir(parents=True, exist_ok=True)
        layout.engine.chmod(0o700)
        mount_tmpfs(layout.secrets)
        resolver, _ = resolver_configuration()
        write_in_place(layout.resolv_conf, resolver)
        _make_sandbox(layout.sandbox, Path(host.init))
    except OSError as error:
        raise EngineError(
            f"The state folder {layout.home} cannot be used: {error}; check its owner and free space."
        ) from error


def _make_sandbox(root: Path, init: Path) -> None:
    """A root file system with nothing but the init program that waits for ever and reaps."""
    make_folder(root)
    for name in _SANDBOX_FOLDERS:
        make_folder(root / name)
    program = root / "catatonit"
    if not program.exists() or program.stat().st_size != init.stat().st_size:
        shutil.copy(init, program)
