"""Buckets, transfers and inventories: kinds, states, permissions, and what is stored beside them. Pure."""

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from neocloud.core import contract, wire
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.storage.v1 import BucketStatus, TransferIteration
from neocloud.messages.neocloud.storage.v1 import GatewayBucket

BUCKET = "nebius.storage.v1.Bucket"
BUCKET_ID_PREFIX = "storagebucket"
BUCKET_SERVICE = "nebius.storage.v1.BucketService"
BUCKET_NAMES = "storage.bucket-names"
"""The namespace of reservations that keeps names unique in the region."""

TRANSFER = "nebius.storage.v1.Transfer"
TRANSFER_ID_PREFIX = "storagetransfer"
TRANSFER_SERVICE = "nebius.storage.v1.TransferService"

INVENTORY = "nebius.storage.v1.Inventory"
INVENTORY_ID_PREFIX = "storagebucketinventory"
INVENTORY_SERVICE = "nebius.storage.v1.InventoryService"

DEFAULT_TTL = timedelta(days=7)
"""How long a deleted bucket is kept where the request does not say; an empty one is not kept."""
_DELETION = "deletion"
ITERATIONS_KEPT = 1000
"""How many of the last iterations of each transfer are kept."""
_RUN, _LAST_ITERATION = "run", "last-iteration"
_ACTOR = "actor"
_FOLDER = "filesystem-folder"


class BucketState(StrEnum):
    """The states of a bucket."""

    CREATING = "CREATING"
    ACTIVE = "ACTIVE"
    UPDATING = "UPDATING"
    SCHEDULED_FOR_DELETION = "SCHEDULED_FOR_DELETION"


class TransferState(StrEnum):
    """The states of a transfer."""

    ACTIVE = "ACTIVE"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    """It was stopped by Stop, or its stop condition is met."""
    FAILING = "FAILING"
    """The last iteration failed; the next one will try again."""
    FAILED = "FAILED"
    """It continues after Resume alone."""
    DELETING = "DELETING"


PERMISSIONS = (
    *(f"storage.buckets.{verb}" for verb in ("create", "get", "list", "update", "delete")),
    *(f"storage.objects.{verb}" for verb in ("create", "get", "list", "update", "delete")),
    "storage.buckets.bypassRetention",  # not of objects, all of which storage.objects.editor has
)
"""The permissions that the object gateway checks. Those of objects are checked on their bucket."""

Mode = GatewayBucket.Mode


def mode_of(row: Resource) -> Mode:
    """Return what the gateway is to do with a bucket."""
    if row.deleted_at is not None:
        return Mode.Value("PURGE")
    return Mode.Value("HIDE" if row.state == BucketState.SCHEDULED_FOR_DELETION else "SERVE")


def mark_for_purge(tx: Transaction, row: Resource, now: datetime) -> Resource:
    """Let the gateway remove the bucket with all that it holds, and then the reconciler its row."""
    status = wire.with_state(row.kind, row.status, BucketState.SCHEDULED_FOR_DELETION)
    marked = replace(
        row, deleted_at=now, updated_at=now, state=BucketState.SCHEDULED_FOR_DELETION, status=status
    )
    tx.update(marked)
    return marked


@dataclass(frozen=True)
class Deletion:
    """The request to delete a bucket. Stored beside it, since a run of the reconciler that began earlier may
    write an older status."""

    deleted_at: datetime
    purge_at: datetime
    is_kept_when_empty: bool


def read_deletion(tx: Transaction, bucket_id: str) -> Deletion | None:
    raw = tx.secret(bucket_id, _DELETION)
    if not raw:
        return None
    deleted_at, purge_at, is_kept = json.loads(raw)
    return Deletion(datetime.fromisoformat(deleted_at), datetime.fromisoformat(purge_at), is_kept)


def write_deletion(tx: Transaction, bucket_id: str, deletion: Deletion | None) -> None:
    """Store the request, in place of an earlier one; None: it was taken back."""
    content = ""
    if deletion is not None:
        times = (deletion.deleted_at.isoformat(), deletion.purge_at.isoformat())
        content = json.dumps((*times, deletion.is_kept_when_empty))
    tx.put_secret(bucket_id, _DELETION, content.encode())


def read_folder(tx: Transaction, bucket_id: str) -> str:
    """Return where the gateway finds the filesystem of a filesystem bucket; "": it is not mounted yet."""
    return (tx.secret(bucket_id, _FOLDER) or b"").decode()


def write_folder(tx: Transaction, bucket_id: str, folder: str) -> None:
    tx.put_secret(bucket_id, _FOLDER, folder.encode())


def show_deletion(status: BucketStatus, deletion: Deletion | None) -> None:
    """Set the times in a status."""
    status.ClearField("deleted_at")
    status.ClearField("purge_at")
    if deletion is not None:
        status.deleted_at.CopyFrom(contract.timestamp(deletion.deleted_at))
        status.purge_at.CopyFrom(contract.timestamp(deletion.purge_at))


@dataclass(frozen=True)
class Run:
    """The request for a transfer to run or to stop. Stored beside the transfer, as a deletion is beside its
    bucket.
    """

    number: int = 1
    """Rises with each Resume."""
    is_stopped: bool = False


def read_run(tx: Transaction, transfer_id: str) -> Run:
    raw = tx.secret(transfer_id, _RUN)
    return Run(*json.loads(raw)) if raw else Run()


def write_run(tx: Transaction, transfer_id: str, run: Run) -> None:
    tx.put_secret(transfer_id, _RUN, json.dumps((run.number, run.is_stopped)).encode())


def write_iteration(tx: Transaction, transfer_id: str, iteration: TransferIteration) -> None:
    """Keep an iteration that ended, in place of the one that ended ITERATIONS_KEPT earlier."""
    number = iteration.sequence_number
    tx.put_secret(transfer_id, _slot(number), iteration.SerializeToString())
    if number > last_iteration(tx, transfer_id):
        tx.put_secret(transfer_id, _LAST_ITERATION, str(number).encode())


def last_iteration(tx: Transaction, transfer_id: str) -> int:
    """Return the number of the last iteration that ended; 0: there is none."""
    return int(tx.secret(transfer_id, _LAST_ITERATION) or 0)


def read_iteration(tx: Transaction, transfer_id: str, number: int) -> TransferIteration | None:
    found = TransferIteration.FromString(tx.secret(transfer_id, _slot(number)) or b"")
    return found if found.sequence_number == number else None


def _slot(number: int) -> str:
    return f"iteration-{number % ITERATIONS_KEPT}"


def read_actor(tx: Transaction, inventory_id: str) -> str:
    """Return the id of the account that an inventory runs for; "" where it is not known."""
    return (tx.secret(inventory_id, _ACTOR) or b"").decode()


def write_actor(tx: Transaction, inventory_id: str, subject_id: str) -> None:
    tx.put_secret(inventory_id, _ACTOR, subject_id.encode())
