"""Back up or restore a store: `python -m neocloud.object_gateway.backups VERB --home HOME --folder FOLDER`.

Writes lines of JSON: {"progress": TEXT} as it proceeds, and at the end {"done": FIELDS} or {"error": TEXT,
"next_step": TEXT}. Files copied before a signal stay, and the next backup continues from there.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from neocloud.data_plane.gateway_keys import object_gateway_folder
from neocloud.object_gateway.backups.location import ObjectBackupError, Show
from neocloud.object_gateway.backups.restore import Restored, restore
from neocloud.object_gateway.backups.write import BackedUp, back_up
from neocloud.object_gateway.composition import load_or_make_store_key
from neocloud.object_store.errors import StoreUnavailable


def main() -> None:
    os.umask(0o077)
    parser = argparse.ArgumentParser(
        prog="python -m neocloud.object_gateway.backups", description="Back up objects."
    )
    parser.add_argument("verb", choices=("backup", "restore"))
    parser.add_argument("--home", type=Path, required=True, help="state folder of the cloud")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the backup")
    parser.add_argument("--keep", type=int, default=1, help="snapshots to keep")
    parser.add_argument("--snapshot", help="snapshot to restore; default: the newest")
    parser.add_argument("--metadata", type=Path, help="file with the address of a database to restore into")
    given = parser.parse_args()
    store = object_gateway_folder(given.home)
    if given.verb == "backup":
        ended = _run(lambda show: back_up(store, given.folder, datetime.now(UTC), given.keep, show))
    else:
        ended = _run(
            lambda show: restore(given.folder, store, _key(store), given.snapshot, show, given.metadata)
        )
    _write(ended)
    sys.exit(0 if "done" in ended else 1)


def _run(work: Callable[[Show], BackedUp | Restored]) -> dict[str, object]:
    try:
        return {"done": asdict(work(lambda text: _write({"progress": text})))}
    except ObjectBackupError as error:
        return {"error": str(error), "next_step": error.next_step}
    except StoreUnavailable as error:
        return {"error": str(error), "next_step": ""}
    except OSError as error:
        return {
            "error": f"{error.filename or 'A file'} cannot be used: {error.strerror or error}",
            "next_step": "Check the path, the room on its disk, and who may read and write there",
        }


def _key(store: Path) -> bytes:
    path = store / "store.key"
    if not path.exists():
        raise ObjectBackupError(
            f"{path} is missing, and without this key the objects cannot be read",
            "Restore the state of the cloud that they were backed up from first: neo restore",
        )
    return load_or_make_store_key(path)


def _write(document: dict[str, object]) -> None:
    sys.stdout.write(f"{json.dumps(document)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
