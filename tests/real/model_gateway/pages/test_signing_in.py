"""CHAT-02: only who is signed in, only from this machine, only by the page itself."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from playwright.sync_api import expect
from starlette.requests import Request

from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.pages.sessions import CODE_SECONDS, SESSION_SECONDS, Sessions, require_private
from neocloud.testing.waiting import FakeClock
from tests.real.model_gateway.pages.conftest import Open, Site, ask, picture

QUESTION = {"model": "local-experiment", "messages": [{"role": "user", "content": "Hello"}]}


def code_of(site: Site) -> str:
    return site.link().partition("code=")[2]


@contextmanager
def signed_in(site: Site) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=site.gateway.url, headers={"origin": site.gateway.url}, timeout=60) as client:
        answer = client.post("/chat/session", json={"code": code_of(site)})
        assert answer.status_code == 201, answer.text
        yield client


def test_a_link_signs_in_once(site: Site) -> None:
    code = code_of(site)
    with httpx.Client(base_url=site.gateway.url, headers={"origin": site.gateway.url}, timeout=60) as client:
        answer = client.post("/chat/session", json={"code": code})
        assert answer.json() == {
            "name": "subject-key-a",
            "projects": ["project-a"],
            "home_project": "project-a",
        }
        cookie = answer.headers["set-cookie"].lower()
        assert all(word in cookie for word in ("httponly", "samesite=strict", "path=/chat", "max-age=43200"))
        assert "key-a" not in cookie
    again = httpx.post(
        f"{site.gateway.url}/chat/session",
        json={"code": code},
        headers={"origin": site.gateway.url},
        timeout=60,
    )
    assert again.status_code == 401
    assert "neo chat" in again.json()["error"]["message"]


def test_a_link_is_only_for_who_has_a_key(site: Site) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}):
        assert httpx.post(f"{site.gateway.url}/v1/chat/links", headers=headers, timeout=60).status_code == 401


def test_a_session_stands_for_its_caller_on_the_pages_own_paths_only(site: Site) -> None:
    with signed_in(site) as client:
        assert client.get("/chat/session").json()["name"] == "subject-key-a"
        assert client.post("/chat/v1/chat/completions", json=QUESTION).status_code == 200
        [cookie] = client.cookies.jar
        by_hand = {"cookie": f"{cookie.name}={cookie.value}", "origin": site.gateway.url}
        for path in ("/v1/chat/completions", "/v1/files", "/v1/chat/links"):
            assert (
                httpx.post(site.gateway.url + path, json=QUESTION, headers=by_hand, timeout=60).status_code
                == 401
            )
        assert httpx.get(f"{site.gateway.url}/chat/v1/files", headers=by_hand, timeout=60).status_code == 404
        no_cookie = {**site.gateway.headers, "origin": site.gateway.url}
        refused = httpx.post(
            f"{site.gateway.url}/chat/v1/chat/completions", json=QUESTION, headers=no_cookie, timeout=60
        )
        assert refused.status_code == 401


@pytest.mark.parametrize("origin", ["", "null", "http://127.0.0.1:1", "https://evil.example"])
def test_another_page_cannot_act_for_who_is_signed_in(site: Site, origin: str) -> None:
    with signed_in(site) as client:
        headers = {"origin": origin}
        for method, path in (
            ("POST", "/chat/v1/chat/completions"), ("POST", "/chat/session"), ("DELETE", "/chat/session"),
        ):  # fmt: skip
            refused = client.request(method, path, json=QUESTION, headers=headers)
            assert refused.status_code == 403
            assert refused.json()["error"]["code"] == "wrong_origin"
        assert client.get("/chat/session").status_code == 200


def test_signing_out_ends_the_session(site: Site) -> None:
    with signed_in(site) as client:
        [cookie] = client.cookies.jar
        entry = {"cookie": f"{cookie.name}={cookie.value}"}
        assert client.request("DELETE", "/chat/session").status_code == 204
        assert not list(client.cookies.jar)
        assert httpx.get(f"{site.gateway.url}/chat/session", headers=entry, timeout=60).status_code == 401


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"code": 1}', b"x" * 70_000, b'{"key": ""}', b'{"key": "no"}']
)
def test_bad_input_is_refused_in_words(site: Site, body: bytes) -> None:
    headers = {"origin": site.gateway.url}
    answer = httpx.post(f"{site.gateway.url}/chat/session", content=body, headers=headers, timeout=60)
    assert answer.status_code in (400, 401, 413)
    assert answer.json()["error"]["message"]


def test_the_page_may_load_only_its_own_files(site: Site) -> None:
    answer = httpx.get(f"{site.gateway.url}/chat", timeout=60)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "style=" not in answer.text and "<script>" not in answer.text
    fresh = {"if-none-match": answer.headers["etag"]}
    assert httpx.get(f"{site.gateway.url}/chat", headers=fresh, timeout=60).status_code == 304
    for path in ("/chat/static/", "/chat/static/../wiring.py", "/chat/static/%2e%2e/wiring.py"):
        assert httpx.get(site.gateway.url + path, timeout=60).status_code == 404


@pytest.mark.parametrize(("host", "is_near"), [("127.0.0.1", True), ("::1", True), ("10.0.0.7", False)])
def test_the_page_is_for_this_machine(host: str, is_near: bool) -> None:
    request = Request({"type": "http", "client": (host, 1234), "headers": []})
    if is_near:
        require_private(request)
        return
    with pytest.raises(OpenAiError, match="ssh -L"):
        require_private(request)


def test_codes_and_sessions_end() -> None:
    clock = FakeClock()
    sessions = Sessions(clock)
    late, session = sessions.new_code("token"), sessions.new_session("token")
    clock._seconds += CODE_SECONDS - 1
    in_time = sessions.new_code("other")
    clock._seconds += 2
    assert sessions.redeem_code(late) is None
    assert sessions.redeem_code(in_time) == "other"
    assert sessions.redeem_code(in_time) is None
    assert sessions.token(session) == "token"
    clock._seconds += SESSION_SECONDS
    assert sessions.token(session) is None
    assert sessions.token("made up") is None


def test_a_key_can_be_pasted(site: Site, open_page: Open) -> None:
    page = open_page(f"{site.gateway.url}/chat")
    picture(page, "sign-in")
    page.get_by_label("API key").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Incorrect API key")
    page.get_by_label("API key").fill(site.gateway.token)
    page.keyboard.press("Enter")
    expect(page.get_by_label("Your message")).to_be_focused()
    assert "key-a" not in page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_the_code_is_gone_from_the_address_and_a_session_outlives_a_reload(
    site: Site, open_page: Open
) -> None:
    page = open_page(site.link())
    expect(page.get_by_label("Your message")).to_be_visible()
    assert "code" not in page.url
    page.reload()
    expect(page.get_by_label("Your message")).to_be_visible()


def test_who_is_signed_out_meanwhile_keeps_the_conversation(site: Site, open_page: Open) -> None:
    control_plane = site.gateway.control_plane
    control_plane.add_caller("soon-revoked", tenant="tenant-a", projects=["project-a"])
    page = open_page(f"{site.gateway.url}/chat")
    page.get_by_label("API key").fill("soon-revoked")
    page.keyboard.press("Enter")
    message = page.get_by_label("Your message")
    ask(page, "Remember this")
    expect(page.locator(".figures:visible")).to_have_count(2)
    page.context.clear_cookies()
    message.fill("And now?")
    message.press("Enter")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.get_by_role("alert").last).to_contain_text("the conversation is kept")
    page.get_by_label("API key").fill(site.gateway.token)
    page.keyboard.press("Enter")
    expect(page.get_by_text("Remember this").first).to_be_visible()


def test_who_works_in_several_projects_says_in_which(site: Site, open_page: Open) -> None:
    control_plane = site.gateway.control_plane
    control_plane.add_caller("person", tenant="tenant-a", projects=["project-a", "project-b"])
    control_plane.callers["person"].home_project_id = ""
    page = open_page(f"{site.gateway.url}/chat")
    page.get_by_label("API key").fill("person")
    page.keyboard.press("Enter")
    page.get_by_label("Project").select_option("project-b")
    ask(page, "Hello")
    expect(page.locator(".figures:visible")).to_have_count(2)
    page.get_by_role("button", name="View code").click()
    expect(page.get_by_role("tabpanel")).to_contain_text("OpenAI-Project: project-b")
