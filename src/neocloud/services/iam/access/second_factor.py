"""The second factor of a user: the secret an authenticator app shares with us, and which codes were used."""

import json
from datetime import datetime
from typing import Any

from neocloud.core.store.protocol import Transaction
from neocloud.services.iam.rules.users import totp_step

_TOTP = "totp"


def has_second_factor(tx: Transaction, account_id: str) -> bool:
    return bool(_read(tx, account_id).get("is_confirmed"))


def propose(tx: Transaction, account_id: str, secret: str) -> None:
    """It counts from the first right code on."""
    _write(tx, account_id, {"secret": secret, "is_confirmed": False, "last_step": 0})


def use_code(tx: Transaction, account_id: str, code: str, now: datetime, *, confirm: bool = False) -> bool:
    """Whether the code is right and was not used before; it is used up now."""
    known = _read(tx, account_id)
    if not known:
        return False
    step = totp_step(known["secret"], code, now, known["last_step"])
    if step is None:
        return False
    is_confirmed = known["is_confirmed"] or confirm
    _write(tx, account_id, {**known, "last_step": step, "is_confirmed": is_confirmed})
    return True


def remove(tx: Transaction, account_id: str) -> None:
    _write(tx, account_id, {})


def _read(tx: Transaction, account_id: str) -> dict[str, Any]:
    return json.loads(tx.secret(account_id, _TOTP) or b"{}")


def _write(tx: Transaction, account_id: str, known: dict[str, Any]) -> None:
    tx.put_secret(account_id, _TOTP, json.dumps(known).encode())
