"""The Linux users of a cluster: accounts in the shared root, and associations in Slurm's accounting.

The programs that make them belong to the tenant, and so do /etc/passwd and the homes: the scripts run inside
the shared root with a tenant's rights (rfd 0002), and what they print is only shown.
"""

from contextlib import suppress

from neocloud.core.reconcile.reconciler import DAEMON_POLL_SECONDS, RetryLater
from neocloud.engines.base import EngineError, ExecResult
from neocloud.messages.neocloud.slurm.v1 import UserStatus
from neocloud.services.slurm.access import SlurmAccess
from neocloud.services.slurm.reconcile.scope import Scope
from neocloud.services.slurm.render import BALANCER_POD, LOGIN_POD
from neocloud.services.slurm.types import ADD_USER, REMOVE_USER

FIRST_UID = 5000
"""Above those that `useradd` gives by itself."""
LAST_UID = 59_999
"""Higher numbers belong to the system: docs of Debian, and `end-sessions` of the image."""
MAX_MESSAGE = 300

_ADD = """
name=$1 uid=$2
if found=$(id -u "$name" 2>/dev/null); then
    uid=$found
else
    owner=$(stat --format=%u "/home/$name" 2>/dev/null) && [ "$owner" -ge 1000 ] && uid=$owner
    while getent passwd "$uid" >/dev/null; do uid=$((uid + 1)); done
    useradd --create-home --key HOME_MODE=0700 --shell /bin/bash --uid "$uid" "$name" || exit 1
fi
if [ "$uid" -lt 1000 ]; then
    echo "$name is an account of the system in the shared root; choose another name" >&2
    exit 1
fi
known() { [ -n "$(sacctmgr --noheader --parsable2 show association user="$name" format=user)" ]; }
for attempt in 1 2 3 4 5; do
    known && break
    sacctmgr --immediate add user "$name" account=root >/dev/null && break
    sleep 1
done
known || exit 1
echo "$uid"
"""
"""A home that was left by a user of this name keeps its owner."""

_REMOVE = """
name=$1
scancel --quiet --user="$name" 2>/dev/null
for attempt in 1 2 3 4 5 6 7 8; do
    [ -z "$(sacctmgr --noheader --parsable2 show association user="$name" format=user)" ] && break
    sacctmgr --immediate remove user "$name" >/dev/null 2>&1 && break
    sleep 1
done
uid=$(id -u "$name" 2>/dev/null) && [ "$uid" -ge 1000 ] || exit 0
pkill -KILL --uid "$uid"
userdel --force "$name"
! id -u "$name" >/dev/null 2>&1
"""
"""The home stays."""


async def keep_users(access: SlurmAccess, scope: Scope) -> None:
    """Make the accounts of users who are new in the spec, and remove those of users who left it.

    A script that fails is run again by a later run; it does not hold up the cluster's other changes.
    """
    status = scope.cluster.status
    wanted = [user.name for user in scope.cluster.spec.users]
    known = {user.name: user for user in status.users}
    if set(wanted) == set(known) and all(user.uid for user in known.values()):
        return
    scope.users = known
    scope.last_uid = status.last_uid
    for name in [name for name in known if name not in wanted]:
        result = await _run(access, scope, _REMOVE, REMOVE_USER, name)
        if result.exit_code:
            known[name].message = f"not removed yet: {_reason(result)}"
        else:
            await _end_sessions(access, scope, known[name].uid)
            del known[name]
    for name in wanted:
        if name not in known or not known[name].uid:
            known[name] = await _add(access, scope, name)


async def _end_sessions(access: SlurmAccess, scope: Scope, uid: int) -> None:
    """End what a removed user runs on login nodes beside the first. One that does not answer runs nothing."""
    for pod in scope.login_pods:
        if uid and pod not in (LOGIN_POD, BALANCER_POD):
            with suppress(EngineError):
                await access.run_in_shared_root(scope.cluster_id, pod, ["pkill", "-KILL", "--uid", str(uid)])


async def _add(access: SlurmAccess, scope: Scope, name: str) -> UserStatus:
    free = max(scope.last_uid + 1, FIRST_UID)
    result = await _run(access, scope, _ADD, ADD_USER, name, str(free))
    uid = _number(result.stdout)
    if result.exit_code or not uid:
        return UserStatus(name=name, message=_reason(result))
    scope.last_uid = max(scope.last_uid, uid)
    return UserStatus(name=name, uid=uid)


async def _run(access: SlurmAccess, scope: Scope, script: str, what: str, *arguments: str) -> ExecResult:
    try:
        return await access.run_in_login_shell(scope.cluster_id, ["/bin/sh", "-c", script, what, *arguments])
    except EngineError as error:
        raise RetryLater(
            f"the login node does not answer: {error}", delay_seconds=DAEMON_POLL_SECONDS
        ) from error


def _number(output: bytes) -> int:
    """Return the number that the script printed last; 0 if it is none of a user."""
    last = (output.split() or [b""])[-1]
    number = int(last) if last.isdigit() and len(last) < 8 else 0
    return number if 1000 <= number <= LAST_UID else 0


def _reason(result: ExecResult) -> str:
    text = result.stderr.decode(errors="replace").strip() or "its programs in the shared root said nothing"
    return text[-MAX_MESSAGE:]
