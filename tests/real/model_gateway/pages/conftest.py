"""The page in Debian's Chromium, against a gateway process and a mock engine."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    expect,
    sync_playwright,
)

from neocloud.testing.gateway import EngineProcess, GatewayProcess, engine_process, gateway_process, route
from neocloud.testing.mock_engine import Behaviour
from tests import ROOT

SCREENSHOTS = ROOT / "out" / "screenshots"
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 375, "height": 740}
WAIT_MS = 60_000
SPEED = {"tokens": 12, "token_seconds": 0.01, "first_seconds": 0.05}


@dataclass
class Site:
    """A base model, a fine-tuned one on it, one without a price, and one that is asleep."""

    gateway: GatewayProcess
    engine: EngineProcess

    def link(self, **fields: str) -> str:
        """Return a link to the page, as `neo chat` makes it."""
        answer = httpx.post(f"{self.gateway.url}/v1/chat/links", headers=self.gateway.headers, timeout=60)
        assert answer.status_code == 201, answer.text
        params = httpx.QueryParams({"code": answer.json()["code"], **fields})
        return f"{self.gateway.url}/chat#{params}"

    def serve(self, **more: Any) -> None:
        address = self.engine.address
        price = {"input": "0.02", "cached_input": "0.005", "output": "0.06"}
        base = route(
            "llama-3.1-8b", replicas=[address], adapters={"bank-support": [address]}, price=price, **more
        )
        for model in base["models"]:
            model["license"] = "llama3.1"
        unpriced = route("local-experiment", replicas=[address], price={})
        asleep = route("mistral-nemo", start_seconds=2, context_length=131072, charge="BY_HOUR")
        self.gateway.set_routes(base, unpriced, asleep)

    def asked(self) -> dict[str, Any]:
        """Return the last request to the engine."""
        return self.engine.counts()["last"]["body"]


@pytest.fixture(scope="package")
def running_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with (
        engine_process(Behaviour(**SPEED)) as engine,
        gateway_process(tmp_path_factory.mktemp("pages")) as gateway,
    ):
        yield Site(gateway, engine)


@pytest.fixture
def site(running_site: Site) -> Site:
    running_site.engine.tell(**vars(Behaviour(**SPEED)))
    running_site.serve()
    return running_site


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Ends with this folder's tests: while Playwright runs, no other test can have a loop of its own."""
    program = shutil.which("chromium")
    assert program, "There is no chromium: scripts/install-debian-packages test"
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=program, args=options)
        yield browser
        browser.close()


Open = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Fails where the page has an error of its own, or loads anything from elsewhere."""
    contexts: list[BrowserContext] = []
    problems: list[str] = []

    def open_page(url: str, *, size: Any = DESKTOP, scheme: Any = "light") -> Page:
        context = browser.new_context(
            viewport=size, color_scheme=scheme, permissions=["clipboard-read", "clipboard-write"]
        )
        context.set_default_timeout(WAIT_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        origin = url.partition("/chat")[0]

        def note_message(message: ConsoleMessage) -> None:
            if "Content Security" in message.text:
                problems.append(message.text)

        def note_request(request: Request) -> None:
            if not request.url.startswith((origin, "data:")):
                problems.append(request.url)

        page.on("console", note_message)
        page.on("request", note_request)
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def picture(page: Page, name: str) -> None:
    """Kept as build output, to be looked at."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", animations="disabled")


def ask(page: Page, words: str) -> None:
    """Send a message, once the page knows the models."""
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    page.get_by_label("Your message").fill(words)
    page.keyboard.press("Enter")
