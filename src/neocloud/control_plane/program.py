"""The server's program: run a control plane until a signal, or stop one that runs."""

import asyncio
import logging
import os
import sys

from neocloud.control_plane import lifecycle
from neocloud.control_plane.composition import end_workloads, on_emulator, on_podman
from neocloud.control_plane.prepared_server import PREPARED, has_turn
from neocloud.control_plane.settings_file import parse_arguments, unknown_keys
from neocloud.control_plane.state_dir import HomeInUse
from neocloud.core.logs import set_up_logging
from neocloud.core.sqlite_file import SqliteFileError
from neocloud.core.store import StoreError
from neocloud.emulator import UnknownGpus
from neocloud.engines.base import EngineError
from neocloud.server import ServerError
from neocloud.services.billing import PriceListError
from neocloud.services.quotas import QuotaFileError

logger = logging.getLogger(__name__)


def run() -> int:
    # Before any file is made. What programs of other users read through mounts gets a mode of its own.
    os.umask(0o077)
    if sys.argv[-1] == PREPARED:
        if not has_turn():
            return 0
        sys.argv.pop()
    try:
        action, settings = parse_arguments()
        set_up_logging(settings.log_level, settings.log_format)
        if action == "serve":
            for key in unknown_keys(settings.home):
                logger.warning("config.json has the key %r, which this release does not know.", key)
            machine = on_emulator(settings) if settings.emulator else on_podman(settings)
            asyncio.run(lifecycle.serve(machine, settings))
        else:
            asyncio.run(end_workloads(settings, destroy=action == "destroy"))
    except (
        StoreError,
        EngineError,
        ServerError,
        PriceListError,
        QuotaFileError,
        UnknownGpus,
        SqliteFileError,
        HomeInUse,
        OSError,
    ) as error:
        print(f"neocloud: {error}", file=sys.stderr)  # noqa: T201  the last word goes to the operator
        return 1
    return 0
