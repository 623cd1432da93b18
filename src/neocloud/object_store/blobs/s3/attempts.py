"""Requests to the engine that keeps the blobs: repeated where that may help, for a bounded time.

A request that fails after all attempts leaves a problem, which the operator is shown. Until one succeeds
again, each is tried once, so that clients hear soon that they should come back later.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime
from typing import TypeVar

from neocloud.object_store.blobs.driver import BlobsAway
from neocloud.s3_client.types import EndpointError

ATTEMPTS = 4
FIRST_WAIT_SECONDS = 0.2
"""Before the second attempt; twice as long before each further one."""
LONGEST_SECONDS = 30.0
"""No attempt begins later than this after the first."""
MISSING = "NoSuchKey"
_Result = TypeVar("_Result")
logger = logging.getLogger(__name__)


class Attempts:
    def __init__(self, location: str, on_denied: Callable[[], None], on_problem: Callable[[], None]) -> None:
        """`on_denied` is called where the engine refuses the key, `on_problem` where a request has failed."""
        self.problem, self.since = "", datetime.now(UTC)
        """Why the last request failed ("": it did not), and since when that is so."""
        self._location, self._on_denied, self._on_problem = location, on_denied, on_problem

    async def run(self, request: Callable[[], Awaitable[_Result]], expected: Collection[str] = ()) -> _Result:
        """Return the answer. Raises EndpointError for one with an expected code, BlobsAway for any other
        failure."""
        began, wait = time.monotonic(), FIRST_WAIT_SECONDS
        for number in range(1, ATTEMPTS + 1):
            try:
                answer = await request()
            except EndpointError as error:
                if error.code in expected:
                    self.note("")
                    raise
                if error.status == 403:
                    self._on_denied()
                is_last = number == ATTEMPTS or time.monotonic() - began > LONGEST_SECONDS
                if self.problem or is_last or not error.is_transient:
                    self.note(str(error))
                    raise away() from error
                logger.debug("%s: %s; again", self._location, error)
            else:
                self.note("")
                return answer
            await asyncio.sleep(wait * random.uniform(0.5, 1.5))  # no secret  # nosec B311
            wait *= 2
        raise AssertionError("the last attempt ends the loop")

    def note(self, problem: str) -> None:
        """Note why requests fail; "": they do not."""
        if bool(problem) != bool(self.problem):
            self.since = datetime.now(UTC)
            if problem:
                logger.warning("The blobs in %s cannot be used: %s", self._location, problem)
            else:
                logger.info("The blobs in %s can be used again", self._location)
        self.problem = problem
        if problem:
            self._on_problem()


def away() -> BlobsAway:
    """Return the message for clients, who may be anybody: the reason is for the operator."""
    return BlobsAway("The storage of large objects does not answer at the moment.")
