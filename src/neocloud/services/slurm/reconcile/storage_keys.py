"""Keys for object storage on the nodes of a cluster: short-lived, one for each user, renewed before they end.

They lie in the shared root, which all nodes have, in a folder of root: a file that its user alone may read,
and beside it a configuration for AWS's clients that reads the file again when the key in it ends. Root of the
cluster can read them all, so a person's key is there only if that person allowed it (rfd 0039).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from neocloud.core import contract
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Transaction
from neocloud.engines.base import EngineError
from neocloud.messages.neocloud.slurm.v1 import StorageKeyStatus
from neocloud.services.iam.types import WorkloadKeys
from neocloud.services.slurm.access import SlurmAccess
from neocloud.services.slurm.reconcile.scope import ClusterScope
from neocloud.services.slurm.reconcile.storage_files import AUTHORITY, DELIVER, FOLDER, PROFILE, rclone_script
from neocloud.services.slurm.types import DELIVER_KEYS
from neocloud.services.storage.public import AccessNotifier
from neocloud.settings.object_settings import storage_host_name
from neocloud.settings.settings import Settings

LIFETIME = timedelta(hours=2)
RENEWAL = timedelta(hours=1)
"""How long before its end a key is replaced. AWS's clients look for another a quarter of an hour before."""
BATCH = 100
"""Keys that one run delivers."""
MAX_MESSAGE = 300


@dataclass(frozen=True)
class Holder:
    """A user of the cluster, and the account that the user acts as."""

    user: str
    uid: int
    account_id: str
    grant: str


class StorageKeys:
    """The steps of the reconciler of clusters that concern keys."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._access = SlurmAccess.of(dependencies)
        self._store = dependencies.store
        self._keys = dependencies.provided.get(WorkloadKeys)
        self._gateway = dependencies.provided.get(AccessNotifier)
        self._settings: Settings = dependencies.settings

    async def set_grants(self, scope: ClusterScope) -> None:
        """End the grants of those who left, and grant the service account of the spec. A person's own grant
        is made by that person alone."""
        account_id = scope.cluster.spec.service_account_id
        wanted = {user.account_id for user in scope.wanted if user.account_id}
        wanted |= {account_id} if account_id else set()

        def change(tx: Transaction) -> None:
            for each in self._keys.granted(tx, scope.cluster_id).keys() - wanted:
                self._keys.withdraw(tx, scope.cluster_id, each)
            if account_id and self._keys.is_usable(tx, account_id):
                self._keys.grant(tx, scope.cluster_id, account_id)

        granted = await self._granted(scope)
        if granted.keys() - wanted or (account_id and account_id not in granted):
            await self._store.write(change)
            self._gateway.notify()
            granted = await self._granted(scope)
        scope.granted = granted

    async def _granted(self, scope: ClusterScope) -> Mapping[str, str]:
        return await self._store.read(lambda tx: self._keys.granted(tx, scope.cluster_id))

    async def end_all(self, scope: ClusterScope) -> None:
        """Keys of a cluster that is being deleted are worthless; let the gateway know."""
        if scope.cluster.status.storage_keys:
            self._gateway.notify()

    async def deliver(self, scope: ClusterScope) -> None:
        """Bring keys that are due to the nodes, and remove those of who has none any more.

        Failed steps on the login node are tried again by a later run, and hold up nothing else.
        """
        known = {key.uid: key for key in scope.cluster.status.storage_keys}
        scope.storage_problem = self._obstacle(scope)
        holders = self._holders(scope)
        kept = {each.uid: known[each.uid] for each in holders if _is_fresh(known.get(each.uid), each, scope)}
        due = [each for each in holders if each.uid not in kept]
        gone = known.keys() - {each.uid for each in holders}
        if not due and not gone:
            return
        delivered = [key for each in due[:BATCH] if (key := await self._line(scope, each)) is not None]
        lines = [*(f"{uid} -" for uid in gone), *(line for line, _ in delivered)]
        problem = await self._run(scope, lines)
        scope.storage_problem = problem or scope.storage_problem
        if not problem:
            kept |= {status.uid: status for _, status in delivered}
            scope.storage_keys = [kept[uid] for uid in sorted(kept)]
            scope.is_recovering |= len(due) > BATCH

    def _obstacle(self, scope: ClusterScope) -> str:
        account_id = scope.cluster.spec.service_account_id
        if account_id and account_id not in scope.granted:
            return f"{account_id} of spec.service_account_id is gone; name another, or none"
        if scope.granted and self._settings.storage_authority_file is None:
            return "this cloud has no object storage for workloads"
        return ""

    def _holders(self, scope: ClusterScope) -> list[Holder]:
        if self._settings.storage_authority_file is None:
            return []
        users = scope.cluster.status.users if scope.users is None else scope.users.values()
        own = scope.cluster.spec.service_account_id
        accounts = [("root", 0, own)]
        accounts += [(user.name, user.uid, user.account_id or own) for user in users if user.uid]
        return [
            Holder(name, uid, account_id, scope.granted[account_id])
            for name, uid, account_id in accounts
            if account_id in scope.granted
        ]

    async def _line(self, scope: ClusterScope, holder: Holder) -> tuple[str, StorageKeyStatus] | None:
        key = await self._keys.issue(scope.cluster_id, holder.account_id, LIFETIME)
        if key is None:
            return None
        ends = contract.timestamp(key.expires_at)
        status = StorageKeyStatus(
            user=holder.user,
            uid=holder.uid,
            account_id=holder.account_id,
            expires_at=ends,
            grant=holder.grant,
        )
        return f"{holder.uid} {key.aws_access_key_id} {key.secret} {ends.ToJsonString()}", status

    async def _run(self, scope: ClusterScope, lines: Sequence[str]) -> str:
        """Return why it failed; "" if it did not. The keys are in no argument: other users see arguments."""
        region = self._settings.region
        endpoint = f"https://{storage_host_name(region)}"
        arguments = ["", FOLDER, region, endpoint, AUTHORITY, PROFILE, rclone_script(region, endpoint)]
        try:
            result = await self._access.run_in_login_shell(
                scope.cluster_id,
                ["/bin/sh", "-c", DELIVER, DELIVER_KEYS, *arguments],
                stdin="".join(f"{line}\n" for line in lines).encode(),
            )
        except EngineError as error:
            return f"the login node does not answer: {error}"[-MAX_MESSAGE:]
        if not result.exit_code:
            return ""
        said = result.stderr.decode(errors="replace").strip()
        return said[-MAX_MESSAGE:] or "its programs in the shared root said nothing"


def _is_fresh(known: StorageKeyStatus | None, holder: Holder, scope: ClusterScope) -> bool:
    if known is None or Holder(known.user, known.uid, known.account_id, known.grant) != holder:
        return False
    return contract.to_datetime(known.expires_at) - scope.context.now > RENEWAL
