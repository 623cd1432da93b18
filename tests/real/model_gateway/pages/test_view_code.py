"""PLAY-03, AIS-02: the code that is shown runs as it is copied, and asks what the page would."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from neocloud.testing.waiting import wait_until
from tests.clients import CLIENTS
from tests.real.model_gateway.pages.conftest import ROOT, Open, Site, ask, picture

PROMPT = """It's "quoted", $HOME `id` \\n é 😀
JSON
'''and''' a second line"""


@pytest.fixture(scope="session")
def openai_js() -> Path:
    folder = CLIENTS / "openai-js"
    if not (folder / "installed.txt").exists():
        subprocess.run([ROOT / "scripts" / "install-client", "openai-js"], check=True)
    return folder / "node_modules"


def run(language: str, code: str, folder: Path, modules: Path, key: dict[str, str]) -> str:
    if language == "JavaScript":
        (folder / "node_modules").symlink_to(modules)
        (folder / "ask.mjs").write_text(code)
        command = [shutil.which("node") or "node", str(folder / "ask.mjs")]
    else:
        command = ["bash", "-euc", code] if language == "curl" else [sys.executable, "-c", code]
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "LC_ALL": "C.UTF-8", **key}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=180, env=env)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def copied(page: Page, language: str) -> str:
    page.get_by_role("tab", name=language).click()
    page.get_by_role("button", name=re.compile("Cop(y|ied)")).click()
    shown = page.get_by_role("tabpanel").text_content() or ""
    wait_until(lambda: page.evaluate("navigator.clipboard.readText()") == shown, seconds=60)
    expect(page.get_by_role("status")).to_have_text("Copied")  # the button says so for a moment alone
    return shown


def without_stream(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in ("stream", "stream_options")}


def test_all_three_run_as_copied(site: Site, open_page: Open, openai_js: Path, tmp_path: Path) -> None:
    page = open_page(site.link(model="local-experiment"))
    page.get_by_text("Parameters").click()
    page.get_by_label("System prompt").fill('Say "yes" \\ or no')
    page.get_by_label("Top p").fill("0.95")
    page.get_by_label("Seed").fill("42")
    page.get_by_label("Stop sequences").fill("<end>\nit's")
    ask(page, PROMPT)
    expect(page.locator(".figures:visible")).to_have_count(1)
    asked = without_stream(site.asked())
    assert asked["messages"][-1]["content"] == PROMPT

    page.get_by_role("button", name="View code").click()
    picture(page, "view-code")
    key = {"OPENAI_API_KEY": site.gateway.token}
    for number, language in enumerate(("curl", "Python", "JavaScript")):
        folder = tmp_path / language
        folder.mkdir()
        code = copied(page, language)
        site.engine.tell(tokens=3 + number)
        said = run(language, code, folder, openai_js, key)
        assert " word" * (3 + number) in said and " word" * (4 + number) not in said
        assert without_stream(site.asked()) == asked


def test_the_dialog_is_worked_by_keys_and_shows_each_column(site: Site, open_page: Open) -> None:
    page = open_page(site.link())
    expect(page.get_by_role("button", name="View code")).to_be_enabled()
    page.get_by_label("Your message").fill("Draft")
    page.get_by_role("button", name="View code").focus()
    page.keyboard.press("Enter")
    panel = page.get_by_role("tabpanel")
    expect(page.get_by_role("tab", name="curl")).to_be_focused()
    expect(panel).to_contain_text('"model": "llama-3.1-8b"')
    expect(panel).to_contain_text('"content": "Draft"')
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Python")).to_be_focused()
    expect(panel).to_contain_text("from openai import OpenAI")
    page.get_by_label("Column").select_option(label="2: bank-support")
    expect(panel).to_contain_text('model="bank-support"')
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="View code")).to_be_focused()
