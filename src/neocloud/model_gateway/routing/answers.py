"""The last answers of this gateway, so that their callers can rate them."""

import time
from collections import OrderedDict
from dataclasses import dataclass, field

from neocloud.model_gateway.api.request import RequestContext
from neocloud.model_gateway.routing.releases import ActiveRelease
from neocloud.model_gateway.routing.routes import Target

MOST_ANSWERS = 20_000
"""Some hundred bytes each."""
KEPT_SECONDS = 3600.0


@dataclass(slots=True)
class RecentAnswer:
    """An answer that was passed on whole."""

    subject_id: str
    project_id: str
    called: str
    """The model that the client named."""
    answered_by: str
    """The model that answered: another one where a release sent it there."""
    release: ActiveRelease | None
    at: float = field(default_factory=time.monotonic)


class RecentAnswers:
    def __init__(self, most: int = MOST_ANSWERS, kept_seconds: float = KEPT_SECONDS) -> None:
        self._answers: OrderedDict[str, RecentAnswer] = OrderedDict()
        self._most = most
        self._kept_seconds = kept_seconds

    def add(self, context: RequestContext, target: Target, release: ActiveRelease | None) -> None:
        self._answers[context.request_id] = RecentAnswer(
            context.caller.subject_id, context.project_id, context.request.model, target.name, release
        )
        if len(self._answers) > self._most:
            self._answers.popitem(last=False)

    def of(self, request_id: str, subject_id: str) -> RecentAnswer | None:
        """Return the answer that this subject got; None where there is none, or it is too old."""
        answer = self._answers.get(request_id)
        if answer is None or answer.subject_id != subject_id:
            return None
        return answer if time.monotonic() - answer.at < self._kept_seconds else None
