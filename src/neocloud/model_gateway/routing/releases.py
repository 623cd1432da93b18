"""Releases: which requests for a model another one answers, and when that one is taken back.

A candidate is judged by its last requests, here, so that it is taken back at once, also while the control
plane is away. The control plane gets the counts and the reason, and ends the release.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from neocloud.data_plane.control_plane_client import ControlPlaneUnavailable
from neocloud.messages.neocloud.inference.v1 import ListRoutesResponse, ReleaseReport, RouteRelease
from neocloud.model_gateway.control_plane import ControlPlane
from neocloud.model_gateway.routing.routes import RouteTable, Target

logger = logging.getLogger(__name__)

WINDOW = 100
"""Requests that a candidate is judged by."""
MOST_FAILURES_IN_A_ROW = 3
LEAST_RATINGS = 10
"""Ratings of a candidate's answers from which on they are a reason to take it back."""
REPORT_SECONDS = 1.0


@dataclass(slots=True)
class ActiveRelease:
    """An active release, with what its candidate has done."""

    route: RouteRelease
    news: asyncio.Event
    """Set when there is something to report."""
    credit: int = 0
    """Per cent of a request that the candidate is still to get."""
    outcomes: "deque[tuple[bool, float]]" = field(
        default_factory=lambda: deque[tuple[bool, float]](maxlen=WINDOW)
    )
    """Whether each of the last requests failed, and the seconds to its first byte."""
    ratings: "OrderedDict[str, bool]" = field(default_factory=lambda: OrderedDict[str, bool]())
    """Whether each of the last rated answers was liked, by the id of its request."""
    unreported: ReleaseReport = field(default_factory=ReleaseReport)
    taken_back: str = ""
    """Why the candidate gets no more requests; "" while it does."""

    def takes_this(self) -> bool:
        """Return whether the candidate answers the next request, so that it gets exactly its share."""
        if self.taken_back:
            return False
        self.credit += self.route.share_percent
        if self.credit < 100:
            return False
        self.credit -= 100
        return True

    def add(self, *, failed: bool, first_byte_seconds: float) -> None:
        self.outcomes.append((failed, first_byte_seconds))
        self.unreported.requests += 1
        self.unreported.failed += failed
        if not failed:
            self.unreported.first_byte_milliseconds += round(first_byte_seconds * 1000)
        self.news.set()
        self.take_back(self._problem())

    def rate(self, request_id: str, *, liked: bool) -> None:
        """Count what a caller thinks of an answer of the candidate; a second rating replaces the first."""
        before = self.ratings.pop(request_id, None)
        if before is not None:
            self.unreported.liked -= before
            self.unreported.disliked -= not before
        self.ratings[request_id] = liked
        self.unreported.liked += liked
        self.unreported.disliked += not liked
        if len(self.ratings) > WINDOW:
            self.ratings.popitem(last=False)
        self.news.set()
        self.take_back(self._problem())

    def take_back(self, why: str) -> None:
        if why and not self.taken_back:
            self.taken_back = self.unreported.rolled_back_because = why
            self.news.set()
            logger.warning("release %s: the candidate is taken back: %s", self.route.release_id, why)

    def _problem(self) -> str:
        route, count = self.route, len(self.outcomes)
        failed = sum(outcome for outcome, _ in self.outcomes)
        in_a_row = list(self.outcomes)[-MOST_FAILURES_IN_A_ROW:]
        if len(in_a_row) == MOST_FAILURES_IN_A_ROW and all(outcome for outcome, _ in in_a_row):
            return f"{MOST_FAILURES_IN_A_ROW} of its requests failed in a row."
        if why := self._dislike():
            return why
        if count < route.least_requests:
            return ""
        if failed * 100 > route.most_failed_percent * count:
            return f"{failed} of its last {count} requests failed; {route.most_failed_percent} % may."
        seconds = [seconds for outcome, seconds in self.outcomes if not outcome]
        limit = route.slowest_first_byte_milliseconds
        mean = sum(seconds) / len(seconds) * 1000 if seconds else 0.0
        if limit and mean > limit:
            return f"Its first bytes take {mean:,.0f} ms in the mean of {len(seconds)} requests; {limit} may."
        return ""

    def _dislike(self) -> str:
        limit, count = self.route.most_disliked_percent, len(self.ratings)
        disliked = count - sum(self.ratings.values())
        if not limit or count < LEAST_RATINGS or disliked * 100 <= limit * count:
            return ""
        return f"{disliked} of its last {count} rated answers were disliked; {limit} % may."


class Releases:
    def __init__(self, table: RouteTable) -> None:
        self._table = table
        self._promoted: dict[tuple[str, str], str] = {}
        self._active: dict[tuple[str, str], ActiveRelease] = {}
        self._news = asyncio.Event()

    def follow(self, response: ListRoutesResponse) -> None:
        """Take the releases of new routes; counts of those that are known stay."""
        promoted: dict[tuple[str, str], str] = {}
        active: dict[tuple[str, str], ActiveRelease] = {}
        for route in response.releases:
            key = (route.tenant_id, route.name)
            if route.is_promoted:
                promoted[key] = route.candidate_name
                continue
            known = self._active.get(key)
            if known is None or known.route.release_id != route.release_id:
                active[key] = ActiveRelease(route, self._news)
            else:
                known.route = route
                active[key] = known
        self._promoted, self._active = promoted, active

    def current(self, target: Target) -> Target:
        """Return the model that answers under this name: the one that was promoted last, if it is served."""
        name = self._promoted.get((target.deployment.tenant_id, target.name)) if self._promoted else None
        found = self._table.find(target.deployment.tenant_id, name) if name else None
        return found or target

    def choose(self, tenant_id: str, name: str) -> tuple[ActiveRelease, Target] | None:
        """Return the release and the candidate that answers the next request of this name; None: none does.

        A candidate without a ready replica is taken back.
        """
        release = self._active.get((tenant_id, name)) if self._active else None
        if release is None or not release.takes_this():
            return None
        target = self._table.find(tenant_id, release.route.candidate_name)
        if target is None or not target.deployment.replicas or target.load_error:
            release.take_back("It has no replica that can answer.")
            return None
        return release, target

    async def report_periodically(self, control_plane: ControlPlane) -> None:
        """Report at most once a second, and only when there is something to report."""
        while True:
            await self._news.wait()
            self._news.clear()
            for release in list(self._active.values()):
                await _report(release, control_plane)
            await asyncio.sleep(REPORT_SECONDS)


async def _report(release: ActiveRelease, control_plane: ControlPlane) -> None:
    report = release.unreported
    if not (report.requests or report.liked or report.disliked or report.rolled_back_because):
        return
    release.unreported = ReleaseReport()
    report.release_id = release.route.release_id
    try:
        await control_plane.report_release(report)
    except ControlPlaneUnavailable as error:
        logger.info("Release %s was not reported: %s", report.release_id, error)
        late = release.unreported
        late.requests += report.requests
        late.failed += report.failed
        late.first_byte_milliseconds += report.first_byte_milliseconds
        late.liked += report.liked
        late.disliked += report.disliked
        late.rolled_back_because = late.rolled_back_because or report.rolled_back_because
        release.news.set()
