"""Sign-in of a person by password, and the extension of a session. These calls need no token.

Every refusal has the same words and takes equally long, whether the address has no account, the password is
wrong or the account is blocked. Wrong passwords are counted by e-mail address and by network address. After
some, all passwords are refused for a while, except from a client that signed in before or with the code of a
second factor.
"""

from collections.abc import Sequence
from datetime import datetime

from neocloud.core import contract
from neocloud.core.readers import Subject
from neocloud.core.service import Call
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.neocloud.iam.v1 import (
    RefreshRequest,
    SignInResponse,
    SignOutRequest,
    SignOutResponse,
    WithPasswordRequest,
)
from neocloud.services.iam.access import sessions
from neocloud.services.iam.access.passwords import (
    checker_of,
    clear_attempts,
    count_attempt,
    has_second_factor,
    locked_until,
    password_hash,
    put_password_hash,
    uncount_attempt,
    use_code,
)
from neocloud.services.iam.access.sessions import SOURCE, write_event, write_no_event
from neocloud.services.iam.access.tokens import device_of, device_token, issue
from neocloud.services.iam.access.users import find_by_address, is_usable, name_of
from neocloud.services.iam.rules.people import (
    SOURCES,
    Counted,
    of_account,
    of_address,
    of_device,
    of_source,
)

SERVICE = "neocloud.iam.v1.SignInService"


async def with_password(call: Call, request: WithPasswordRequest) -> SignInResponse:
    now, store = call.dependencies.clock.now(), call.dependencies.store
    checker = checker_of(call.dependencies)
    account, hashed = await store.read(lambda tx: _account(tx, request))
    counted, has_code = await _counted(call, request, account, now)
    matches = await checker.matches(request.password, hashed, first=lambda: count_or_refuse(call, counted))
    fresh = await checker.hash(request.password) if matches and hashed and checker.is_outdated(hashed) else ""

    def decide(tx: Transaction) -> sessions.OpenSession | contract.ApiError:
        found = tx.get(account.id) if matches and account else None
        if found is None or not is_usable(tx, found) or password_hash(tx, found.id) != hashed:
            return _refused(tx, call, account)
        if has_second_factor(tx, found.id) and not has_code:
            if not request.totp_code:
                return _code_required()
            if not use_code(tx, found.id, request.totp_code, now):
                return _refused(tx, call, account)
        uncount_attempt(tx, (each for each in counted if each.space == SOURCES), now)
        clear_attempts(tx, (each for each in counted if each.space != SOURCES))
        if fresh:
            put_password_hash(tx, found.id, fresh)
        return start_session(tx, call, found, "PASSWORD", request.client, f"{SERVICE}/WithPassword")

    return await answer(call, await store.write(decide), has_password=True)


async def _counted(
    call: Call, request: WithPasswordRequest, account: Resource | None, now: datetime
) -> tuple[Sequence[Counted], bool]:
    """Return what a wrong password is counted for, and whether the code of a second factor was right (and is
    used now). Raises ApiError when there were too many wrong passwords already."""
    store, source = call.dependencies.store, of_source(call.headers.get(SOURCE, ""))
    device = await device_of(call, request.device_token, account.id) if account else ""
    counted = (of_device(device),) if device else (of_address(request.email), source)
    locked = await store.read(lambda tx: locked_until(tx, counted, now))
    if locked is None:
        return counted, False
    if account is None or device:
        raise _locked(locked, now)
    if not await store.write(lambda tx: _code_is_right(tx, account, request, now)):
        raise _locked(locked, now)
    # The code shows that this client is none of those that have guessed passwords.
    return (of_account(account.id),), True


def _code_is_right(tx: Transaction, account: Resource, request: WithPasswordRequest, now: datetime) -> bool:
    return (
        bool(request.totp_code)
        and has_second_factor(tx, account.id)
        and use_code(tx, account.id, request.totp_code, now)
    )


async def refresh(call: Call, request: RefreshRequest) -> SignInResponse:
    now, store = call.dependencies.clock.now(), call.dependencies.store

    def rotate(tx: Transaction) -> sessions.OpenSession | contract.ApiError:
        found = sessions.refresh(tx, request.refresh_token, now)
        if isinstance(found, sessions.OpenSession):
            return found
        error = contract.unauthenticated(
            "The session has ended, or its refresh token was used already. Sign in again: neo login"
        )
        if found is not None:
            why = contract.unauthenticated("A used refresh token was sent again; the session was ended.")
            write_event(tx, call, f"{SERVICE}/Refresh", subject_of(tx, found), found.id, error=why)
        return error

    return await answer(call, await store.write(rotate))


async def sign_out(call: Call, request: SignOutRequest) -> SignOutResponse:
    """End a session. Succeeds also when it has ended already."""

    def close(tx: Transaction) -> None:
        row = sessions.close(tx, request.refresh_token)
        account = tx.get(row.parent_id) if row else None
        if account is not None and row is not None:
            write_event(tx, call, f"{SERVICE}/SignOut", subject_of(tx, account), row.id)

    await call.dependencies.store.write(close)
    return SignOutResponse()


async def count_or_refuse(call: Call, counted: Sequence[Counted]) -> None:
    """Count an attempt. Raises ApiError (too many requests) when there were too many wrong ones."""
    now = call.dependencies.clock.now()
    locked = await call.dependencies.store.write(lambda tx: count_attempt(tx, counted, now))
    if locked is not None:
        raise _locked(locked, now)


def _locked(until: datetime, now: datetime) -> contract.ApiError:
    seconds = (until - now).total_seconds()
    return contract.too_many_requests(
        f"There were too many wrong passwords. Try again in {max(1, round(seconds / 60))} min."
        " Or sign in from a client that you used before, or with the code of your second factor,"
        " or ask an admin of the tenant for a new password.",
        retry_after_seconds=seconds,
    )


def start_session(
    tx: Transaction, call: Call, account: Resource, how: str, client: str, method: str
) -> sessions.OpenSession:
    opened = sessions.open_session(tx, account, how, client, call.dependencies.clock.now())
    write_event(tx, call, method, subject_of(tx, account), opened.row.id)
    return opened


async def answer(
    call: Call, opened: sessions.OpenSession | contract.ApiError, *, has_password: bool = False
) -> SignInResponse:
    """Return the tokens of a session. Raises a refusal here, outside the transaction that recorded it."""
    if isinstance(opened, contract.ApiError):
        raise opened
    now: datetime = call.dependencies.clock.now()
    token = await issue(call.dependencies.store, now, opened.account.id, opened.row.id)
    return SignInResponse(
        access_token=token.value,
        expires_in=int(token.lifetime.total_seconds()),
        refresh_token=opened.refresh_token,
        refresh_expires_in=int((opened.expires_at - now).total_seconds()),
        session_id=opened.row.id,
        tenant_user_account_id=opened.account.id,
        tenant_id=opened.account.parent_id,
        device_token=await device_token(call, opened.account.id) if has_password else "",
    )


def subject_of(tx: Transaction, account: Resource) -> Subject:
    return Subject(account.id, "user", name_of(tx, account), account.parent_id)


def _account(tx: Transaction, request: WithPasswordRequest) -> tuple[Resource | None, str | None]:
    account = find_by_address(tx, request.email, request.tenant_id)
    return account, password_hash(tx, account.id) if account else None


def _refused(tx: Transaction, call: Call, account: Resource | None) -> contract.ApiError:
    error = contract.unauthenticated(
        "The address, the password or the code is wrong, or the account may not sign in. If the address has"
        " accounts in several tenants, give the tenant."
    )
    if account is None:
        write_no_event(tx)
    else:
        write_event(tx, call, f"{SERVICE}/WithPassword", subject_of(tx, account), account.id, error=error)
    return error


def _code_required() -> contract.ApiError:
    """Return the error for a right password without the code that the account requires."""
    return contract.ApiError(
        contract.Code.FAILED_PRECONDITION,
        "The account has a second factor: also send the current code of its authenticator app.",
    )
