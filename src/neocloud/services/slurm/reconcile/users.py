"""The Linux users of a cluster: accounts in the shared root, and associations in Slurm's accounting.

The programs that make them belong to the tenant, and so do /etc/passwd and the homes: the scripts run inside
the shared root with a tenant's rights (rfd 0002), and what they print is only shown. Numbers and names are
the cloud's: its status has those of former users, and no other user gets them.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress

from neocloud.core.reconcile.reconciler import DAEMON_POLL_SECONDS, RetryLater
from neocloud.engines.base import EngineError, ExecResult
from neocloud.messages.neocloud.slurm.v1 import UserStatus
from neocloud.services.slurm.access import SlurmAccess
from neocloud.services.slurm.reconcile.scope import ClusterScope
from neocloud.services.slurm.render import BALANCER_POD, LOGIN_POD
from neocloud.services.slurm.types import ADD_USER, REMOVE_USER, LinuxUser

FIRST_UID = 5000
"""Above those that `useradd` gives by itself."""
LAST_UID = 59_999
"""Higher numbers belong to the system: docs of Debian, and `end-sessions` of the image."""
MAX_MESSAGE = 300
BATCH = 25
"""Users that one run adds, and removes: the cluster's other changes do not wait for thousands."""

_ADD = r"""
used=" $1 $(stat --format=%u /home/* 2>/dev/null | tr '\n' ' ') "
shift
add() { # name, number, "fixed" or "free", account of a person in a group
    uid=$2
    if [ -L "/home/$1" ]; then
        echo "/home/$1 is a link in the shared root; remove it" >&2
    elif line=$(getent passwd "$1"); then
        comment=$(echo "$line" | cut -d: -f5 | cut -d, -f1)
        uid=$(echo "$line" | cut -d: -f3)
        if [ -n "$4" ] && [ "$comment" != "$4" ]; then
            echo "root of the cluster made an account $1" >&2
            echo "taken $1"
        elif [ "$uid" -lt 1000 ]; then
            echo "$1 is an account of the system in the shared root; choose another name" >&2
        else
            made="$made $1:$uid:found"
        fi
    elif [ -n "$4" ] && [ "$3" = free ] && [ -e "/home/$1" ]; then
        echo "taken $1"
    else
        owner=$(stat --format=%u "/home/$1" 2>/dev/null || echo 0)
        if [ "$3" = free ] && [ "$owner" -ge 1000 ] && ! getent passwd "$owner" >/dev/null; then
            uid=$owner
        elif [ "$3" = free ]; then
            while getent passwd "$uid" >/dev/null || [ "${used#* $uid }" != "$used" ]; do
                uid=$((uid + 1))
            done
        fi
        useradd --create-home --key HOME_MODE=0700 --shell /bin/bash --comment "$4" --uid "$uid" "$1" &&
            made="$made $1:$uid:made"
    fi
}
made=
for item in "$@"; do
    IFS=: read -r name uid kind account <<END
$item
END
    add "$name" "$uid" "$kind" "$account"
done
names=
for item in $made; do names="$names,${item%%:*}"; done
[ -n "$names" ] || exit 0
known() { sacctmgr --noheader --parsable2 show association user="${names#,}" format=user; }
for attempt in 1 2 3 4 5; do
    sacctmgr --immediate add user "${names#,}" account=root >/dev/null && break
    [ "$(known | sort -u | wc -l)" -ge "$(echo $made | wc -w)" ] && break
    sleep 1
done
with_association=$(known)
for item in $made; do
    name=${item%%:*}
    if echo "$with_association" | grep -qxF -e "$name"; then echo "user $item"; fi
done
"""
"""No new number owns a home that is there: after a restore from a backup, it is a former user's. A user of
the spec gets the home of that name. The comment says whose an account is that was made just before a kill."""

_REMOVE = r"""
for name in "$@"; do scancel --quiet --user="$name" 2>/dev/null; done
left="$*"
for attempt in 1 2 3 4 5 6 7 8; do
    again=
    for name in $left; do
        [ -z "$(sacctmgr --noheader --parsable2 show association user="$name" format=user)" ] ||
            sacctmgr --immediate remove user "$name" >/dev/null 2>&1 || again="$again $name"
    done
    left=$again
    [ -n "$left" ] || break
    sleep 1
done
for name in "$@"; do
    if uid=$(id -u "$name" 2>/dev/null) && [ "$uid" -ge 1000 ]; then
        pkill -KILL --uid "$uid"
        userdel --force "$name"
        ! id -u "$name" >/dev/null 2>&1 || continue
    fi
    echo "removed $name"
done
"""
"""The homes stay."""


async def keep_users(access: SlurmAccess, scope: ClusterScope) -> None:
    """Make the accounts of new users, and remove those of users who left.

    Failed steps of a script are tried again by a later run; they do not hold up the cluster's other changes.
    """
    status = scope.cluster.status
    known = {user.name: user for user in status.users}
    wanted = {user.name: user for user in scope.wanted}
    leaving = [name for name in known if name not in wanted]
    coming = [user for user in wanted.values() if user.name not in known or not known[user.name].uid]
    if not leaving and not coming:
        return
    scope.users, scope.last_uid = known, status.last_uid
    scope.former_users = {user.name: user for user in status.former_users}
    await _remove(access, scope, known, leaving[:BATCH])
    coming.sort(key=lambda user: user.name in known)  # those that failed before come last
    await _add(access, scope, known, coming[:BATCH])
    scope.users_left = len(leaving[BATCH:]) + len(coming[BATCH:])


async def wait_for_users(scope: ClusterScope) -> None:
    if scope.users_left:
        raise RetryLater(f"{scope.users_left} more to add or remove", delay_seconds=DAEMON_POLL_SECONDS)


async def _remove(
    access: SlurmAccess, scope: ClusterScope, known: dict[str, UserStatus], names: Sequence[str]
) -> None:
    result = await _run(access, scope, _REMOVE, REMOVE_USER, names) if names else None
    if result is None:
        return
    removed = {words[1] for words in _lines(result) if words[0] == "removed" and len(words) == 2}
    await _end_sessions(access, scope, [known[name].uid for name in names if name in removed])
    for name in names:
        if name not in removed:
            known[name].message = f"not removed yet: {_reason(result)}"
        elif (user := known.pop(name)).uid:
            scope.former_users[name] = UserStatus(name=name, uid=user.uid, account_id=user.account_id)


async def _end_sessions(access: SlurmAccess, scope: ClusterScope, uids: Sequence[int]) -> None:
    """End what removed users run on login nodes beside the first. One that does not answer runs nothing."""
    numbers = ",".join(str(uid) for uid in uids if uid)
    for pod in scope.login_pods if numbers else ():
        if pod not in (LOGIN_POD, BALANCER_POD):
            with suppress(EngineError):
                await access.run_in_shared_root(scope.cluster_id, pod, ["pkill", "-KILL", "--uid", numbers])


async def _add(
    access: SlurmAccess, scope: ClusterScope, known: dict[str, UserStatus], users: Sequence[LinuxUser]
) -> None:
    if not users:
        return
    records = (*known.values(), *scope.former_users.values())
    free = max(scope.last_uid + 1, FIRST_UID)
    used = " ".join(str(record.uid) for record in records if record.uid >= free)
    items: list[str] = []
    for user in users:
        former = scope.former_users.get(user.name)
        kind = f"{former.uid}:fixed" if former and former.uid else f"{free}:free"
        items.append(f"{user.name}:{kind}:{user.account_id}")
        free += kind.endswith("free")
    result = await _run(access, scope, _ADD, ADD_USER, [used, *items])
    taken = {words[1] for words in _lines(result) if words[0] == "taken" and len(words) == 2}
    for user in users:
        if user.name in taken and user.account_id and user.name not in scope.former_users:
            # An account or a home that root made. The next run takes another name.
            known.pop(user.name, None)
            scope.former_users[user.name] = UserStatus(name=user.name)
            scope.is_recovering = True
            continue
        uid, is_new = _number(result, user.name, {each.uid for each in records if each.name != user.name})
        known[user.name] = UserStatus(name=user.name, uid=uid, account_id=user.account_id)
        if not uid:
            known[user.name].message = _reason(result)
            continue
        scope.former_users.pop(user.name, None)
        scope.last_uid = max(scope.last_uid, uid) if is_new else scope.last_uid
        scope.is_recovering |= bool(user.account_id)  # the keys come with the next run


async def _run(
    access: SlurmAccess, scope: ClusterScope, script: str, what: str, arguments: Sequence[str]
) -> ExecResult:
    try:
        return await access.run_in_login_shell(scope.cluster_id, ["/bin/sh", "-c", script, what, *arguments])
    except EngineError as error:
        raise RetryLater(
            f"the login node does not answer: {error}", delay_seconds=DAEMON_POLL_SECONDS
        ) from error


def _lines(result: ExecResult) -> Iterable[list[str]]:
    lines = (line.split() for line in result.stdout.decode(errors="replace").splitlines())
    return [words for words in lines if words]


def _number(result: ExecResult, name: str, others: set[int]) -> tuple[int, bool]:
    """Return the number that the script printed for a user, and whether the account is new; 0 if it is the
    number of another user, or of no user."""
    for words in _lines(result):
        if words[0] == "user" and len(words) == 2:
            found, _, rest = words[1].partition(":")
            digits, _, how = rest.partition(":")
            number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 8 else 0
            if found == name and 1000 <= number <= LAST_UID and number not in others:
                return number, how == "made"
    return 0, False


def _reason(result: ExecResult) -> str:
    text = result.stderr.decode(errors="replace").strip() or "its programs in the shared root said nothing"
    return text[-MAX_MESSAGE:]
