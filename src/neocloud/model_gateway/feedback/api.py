"""/v1/feedback: rate an answer; list and delete ratings.

Only the caller of an answer rates it, within an hour, at the gateway that passed it on. The question, the
answer and a comment are stored only with `consent`: others of the project read them then.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from neocloud.core.contract.json_codec import Json
from neocloud.model_gateway.api.errors import OpenAiError, bad_request
from neocloud.model_gateway.authentication import INVOKE
from neocloud.model_gateway.feedback.store import Rating, RatingStore
from neocloud.model_gateway.openai_files.handlers import (
    ApiRequest,
    CallerAuthenticator,
    list_response,
    read_page,
    reject_unknown,
    route,
    text,
)
from neocloud.model_gateway.routing.answers import RecentAnswers

PERMISSION = "inference.feedback"
RATINGS = ("up", "down")
TEXTS = {"question": 20_000, "answer": 20_000, "comment": 2_000}
"""Texts that need consent, and the most characters of each."""
KNOWN = {"request_id", "rating", "consent", *TEXTS}
MOST_LISTED = 1000


class FeedbackApi:
    def __init__(self, store: RatingStore, answers: RecentAnswers) -> None:
        self._store = store
        self._answers = answers

    def routes(self, callers: CallerAuthenticator) -> list[Route]:
        return [
            route("POST", "/v1/feedback", self.rate, callers),
            route("GET", "/v1/feedback", self.list, callers),
            route("DELETE", "/v1/feedback/{rating_id}", self.delete, callers),
        ]

    async def rate(self, request: ApiRequest) -> Response:
        body = await request.body()
        reject_unknown(body, KNOWN)
        rating, texts = _rating(body), _texts(body)
        request_id = text(body, "request_id", required=True)
        answer = self._answers.of(request_id, request.caller.subject_id)
        if answer is None or not request.caller.may(INVOKE, answer.project_id):
            raise OpenAiError(
                404,
                "You got no such answer within the last hour. request_id is the x-request-id header of the"
                " response.",
                param="request_id",
            )
        fields = {
            "project_id": answer.project_id,
            "subject_id": request.caller.subject_id,
            "request_id": request_id,
            "called": answer.called,
            "answered_by": answer.answered_by,
            "rating": rating,
        }
        stored = await asyncio.to_thread(self._store.put, {**fields, **texts})
        if answer.release is not None:
            answer.release.rate(request_id, liked=rating == "up")
        return JSONResponse(_shown(stored), status_code=201)

    async def list(self, request: ApiRequest) -> Mapping[str, object]:
        project_id = request.project(f"{PERMISSION}.list")
        query = request.http.query_params
        rating = query.get("rating", "")
        if rating not in ("", *RATINGS):
            raise bad_request(f"Invalid rating {rating!r}. Use up or down.", param="rating")
        page = read_page(query, limit=100, most=MOST_LISTED)
        found, has_more = await asyncio.to_thread(
            lambda: self._store.page(project_id, page, called=query.get("model", ""), rating=rating)
        )
        return list_response([_shown(each) for each in found], has_more=has_more)

    async def delete(self, request: ApiRequest) -> Mapping[str, object]:
        rating_id: str = request.http.path_params["rating_id"]
        project_id = await asyncio.to_thread(self._store.project_of, rating_id)
        if not project_id or not request.sees(f"{PERMISSION}.delete", project_id):
            raise OpenAiError(404, f"There is no feedback {rating_id[:64]!r}.")
        await asyncio.to_thread(self._store.delete, rating_id)
        return {"id": rating_id, "object": "feedback.deleted", "deleted": True}


def _rating(body: Mapping[str, Json]) -> str:
    rating = text(body, "rating", required=True)
    if rating not in RATINGS:
        raise bad_request(f"Invalid rating {rating[:64]!r}. Use up or down.", param="rating")
    return rating


def _texts(body: Mapping[str, Json]) -> dict[str, str]:
    """Return the texts to store. Raises OpenAiError for a text without consent, and for a long one."""
    consent = body.get("consent", False)
    if not isinstance(consent, bool):
        raise bad_request("consent must be true or false.", param="consent")
    found = {name: text(body, name) for name in TEXTS}
    for name, most in TEXTS.items():
        if len(found[name]) > most:
            raise bad_request(f"{name} has more than {most:,} characters.", param=name)
        if found[name] and not consent:
            raise bad_request(
                f'{name} is stored only with "consent": true; others of the project can read it then.',
                param=name,
            )
    return found


def _shown(rating: Rating) -> dict[str, object]:
    return {"object": "feedback", **asdict(rating)}
