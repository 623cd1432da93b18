"""The record of the cloud that owns the GPUs of this host.

Each cloud has a ledger of its own, so two of them would give one GPU twice. All GPUs of a host are those of
the cloud that found them first, until it is destroyed; a file of the host names its state folder.
"""

import fcntl
import json
import logging
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from neocloud.core.osfiles import write_file

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GpuOwner:
    """Claims the GPUs of the host for this cloud. Its methods block."""

    home: Path
    """The state folder of this cloud."""
    record: Path = Path("/var/lib/neocloud-gpus.json")

    def claim(self) -> Path | None:
        """Take the GPUs unless another cloud has them; return the state folder of that cloud.

        Where the record cannot be read or written, no cloud is refused the GPUs, and the log says so.
        """
        try:
            with self._locked():
                owner = self._owner()
                if owner is None:
                    write_file(self.record, json.dumps({"home": str(self.home)}) + "\n", durable=True)
                return owner if owner != self.home else None
        except OSError as error:
            logger.warning("Other clouds on this host may give its GPUs, too: %s", error)
            return None

    def give_up(self) -> None:
        """Leave the GPUs to other clouds, as when this one is destroyed."""
        try:
            with self._locked():
                if self._owner() == self.home:
                    self.record.unlink()
        except OSError as error:
            logger.warning("Other clouds on this host may not get its GPUs: %s", error)

    def _owner(self) -> Path | None:
        """Return the state folder that is recorded, if it still exists."""
        try:
            home = json.loads(self.record.read_text())["home"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("Ignored %s, which cannot be read: %s", self.record, error)
            return None
        return Path(home) if isinstance(home, str) and Path(home).is_dir() else None

    @contextmanager
    def _locked(self) -> Generator[None, None, None]:
        """Wait for other clouds. Locks the folder itself: a lock file would stay behind."""
        folder = os.open(self.record.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)
