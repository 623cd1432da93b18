"""What is legal for local users: which passwords are taken, and their second factor."""

from collections.abc import Iterable
from datetime import datetime

from pyotp.totp import TOTP
from pyotp.utils import strings_equal

from neocloud.core.kind import Violation

MIN_PASSWORD_CHARS = 12
TOTP_STEP_SECONDS = 30


def password_violations(password: str, email: str, field: str = "password") -> Iterable[Violation]:
    """Length is what counts; rules about signs only make people write passwords down."""
    if len(password) < MIN_PASSWORD_CHARS:
        yield Violation(field, f"must have at least {MIN_PASSWORD_CHARS} characters; several words do well")
    elif password.casefold() in (email.casefold(), email.casefold().partition("@")[0]):
        yield Violation(field, "must not be the e-mail address")
    elif len(set(password)) < 4:
        yield Violation(field, "repeats too few characters")


def totp_step(secret: str, code: str, now: datetime, last_step: int) -> int | None:
    """The time step a code belongs to, one before or after now at most; None when it is wrong or was used."""
    digits = code.replace(" ", "")
    totp = TOTP(secret)
    present = int(now.timestamp()) // TOTP_STEP_SECONDS
    for step in (present - 1, present, present + 1):
        if step > last_step and strings_equal(totp.generate_otp(step), digits):
            return step
    return None
