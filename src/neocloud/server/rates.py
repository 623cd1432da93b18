"""How many calls one caller of the API may make in a second.

Known callers are counted by subject, others by the address they come from.
"""

from collections.abc import Callable

from neocloud.core import contract
from neocloud.core.rates import Buckets, Rate, source_network


class Rates:
    """The buckets of one server.

    Every method counts one call. It raises ApiError (too many requests) with the time to wait when its caller
    has used up what is allowed.
    """

    def __init__(self, subjects: Rate, strangers: Rate, monotonic: Callable[[], float]) -> None:
        self._subjects = Buckets(subjects, monotonic)
        self._sign_ins = Buckets(strangers, monotonic)
        self._unknown = Buckets(strangers, monotonic)

    def count_call(self, subject_id: str) -> None:
        """Count a call of a signed-in subject."""
        _take(self._subjects, subject_id)

    def count_sign_in(self, address: str) -> None:
        """Count a call of a method that anyone may call."""
        _take(self._sign_ins, source_network(address))

    def count_unknown(self, address: str) -> None:
        """Count a call with an unknown token.

        Sign-ins have buckets of their own, so a program with an old token does not keep others behind the
        same address from signing in.
        """
        _take(self._unknown, source_network(address))


def _take(buckets: Buckets, caller: str) -> None:
    wait = buckets.take(caller)
    if wait:
        raise contract.too_many_requests(
            f"These are more than {buckets.per_second:g} calls a second."
            f" Wait {wait:.3f} s, then call less often.",
            retry_after_seconds=wait,
        )
