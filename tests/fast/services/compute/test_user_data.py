"""User data as clients in the wild send it. Each form that cloud-init reads has its effect, or is
refused with the reason."""

import json
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from neocloud.services.compute.rules.user_data import HEADERS, complete_user_data, user_data_violations

CONFIG = "users:\n- name: ubuntu\n"
PATCH = '#cloud-config-jsonp\n[{"op": "add", "path": "/users", "value": []}]\n'
LIST = "#cloud-config-archive\n- type: text/cloud-config\n  content: |\n    users: []\n"
SCRIPT = "#!/bin/sh\necho hello\n"


def archive(*parts: tuple[str, str]) -> str:
    made = MIMEMultipart()
    for kind, content in parts:
        made.attach(MIMEText(content, kind))
    return made.as_string()


GOOD = [
    f"#cloud-config\n{CONFIG}",
    f"#cloud-config\r\n{CONFIG}",
    f"#cloud-config\n{CONFIG}# MIME-Version: 1.0\n",
    f"#cloud-config\n---\n{CONFIG}...\n",
    "#cloud-config\n# Gr\u00fc\u00dfe\n",
    archive(("cloud-config", f"{CONFIG}# Gr\u00fc\u00dfe")),
    SCRIPT,
    SCRIPT.replace("\n", "\r\n"),
    f"## template: jinja\n#cloud-config\n{CONFIG}",
    "## template: jinja\n{% set a = 1 %}\n#cloud-config\na: {{ a }}\n",
    PATCH,
    LIST,
    "#include\nhttps://example.com/config\n",
    "#include-once https://example.com/config\n",
    "#cloud-boothook\n#!/bin/sh\necho early\n",
    "#part-handler\ndef list_types():\n    return []\n",
    archive(("cloud-config", CONFIG), ("x-shellscript", SCRIPT), ("plain", SCRIPT)),
    archive(
        ("cloud-config-jsonp", PATCH.partition("\n")[2]), ("x-include-url", "https://example.com/config")
    ),
    archive(("part-handler", "def list_types(): ..."), ("x-mine", "whatever")),
    "",
]


@pytest.mark.parametrize("text", GOOD)
@pytest.mark.parametrize("before", ["", "\ufeff", "\n", "\r\n \t\r\n", "\ufeff\n", "\n\ufeff\n", "  "])
def test_each_form_arrives_without_what_stood_before_it(text: str, before: str) -> None:
    if before == "  " and not text:
        before = ""
    assert list(user_data_violations(before + text)) == []
    assert complete_user_data(before + text) == text


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        (CONFIG, f"#cloud-config\n{CONFIG}"),
        (f"\ufeff{CONFIG}", f"#cloud-config\n{CONFIG}"),
        (f"\ufeff\r\n{CONFIG}", f"#cloud-config\n{CONFIG}"),
        (f"---\n#cloud-config\n{CONFIG}", f"#cloud-config\n---\n#cloud-config\n{CONFIG}"),
        (f"# my machine\n{CONFIG}", f"#cloud-config\n# my machine\n{CONFIG}"),
        (f"# mine\n#cloud-config\n{CONFIG}", f"#cloud-config\n# mine\n#cloud-config\n{CONFIG}"),
        (f"#configuration\n{CONFIG}", f"#cloud-config\n#configuration\n{CONFIG}"),
        ("  a: 1\n  b: 2\n", "#cloud-config\n  a: 1\n  b: 2\n"),
        (f"#Cloud-Config\n{CONFIG}", f"#cloud-config\n{CONFIG}"),
        ("#CLOUD-BOOTHOOK\n#!/bin/sh\n", "#cloud-boothook\n#!/bin/sh\n"),
        ("Content-Type: text/x-shellscript\n\n#!/bin/sh\n",) * 2,
    ],
)
def test_a_missing_first_line_is_put_in_front(text: str, complete: str) -> None:
    if text.startswith("Content-Type"):
        complete = f"MIME-Version: 1.0\n{complete}"
    assert complete_user_data(text) == complete
    assert list(user_data_violations(text)) == []
    assert complete_user_data(complete) == complete


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("#cloud-config\nusers: [\n", "is not valid YAML under #cloud-config"),
        ("#cloud-config\n- a\n- list\n", "must be a mapping"),
        ("#cloud-config-archive\nusers: []\n", "must be a sequence under #cloud-config-archive"),
        ("#cloud-config-archive\n- [\n", "is not valid YAML under #cloud-config-archive"),
        ('#cloud-config-jsonp\n{"users": []}\n', "must be a list of changes under #cloud-config-jsonp"),
        ("#cloud-config-jsonp\n[\n", "is not valid JSON under #cloud-config-jsonp"),
        (f"#cloud-config-jsonp\n{'[' * 60_000}", "nested too deeply"),
        ("#include\n# nothing\n", "has no URL under #include"),
        (f"## template: jinja\n{CONFIG}", "needs #cloud-config or #! in the line below"),
        ("## template: jinja\n#cloud-boothook\n", "needs #cloud-config or #! in the line below"),
        (f"##template: jinja\n{CONFIG}", "begins nearly like a template"),
        ("users: [\n", "is not in a format of cloud-init"),
        ("hello\n", "is not in a format of cloud-init"),
        ("# a comment\n#!/bin/sh\necho\n", "is not in a format of cloud-init"),
        ("#upstart-job\nexec true\n", "is not in a format of cloud-init"),
        ("H4sIAAAAAAAAA1NWUE4qTczLBgCmRPGaCAAAAA==\n", "is not in a format of cloud-init"),
        ("#cloud-configuration:\nMIME-Version: 1.0\n", "so that cloud-init reads it as MIME"),
        (
            f"#cloud-config\n{CONFIG}# MIME-Version: 1.0, Gr\u00fc\u00dfe\n",
            "so that cloud-init reads it as MIME",
        ),
        (
            f"MIME-Version: 1.0\n\n#cloud-config\n{CONFIG}# Gr\u00fc\u00dfe\n",
            "part 1: holds letters",
        ),
        ("#!/bin/sh\0", "zero byte"),
        ("Content-Type: multipart/mixed\n\n", "MIME archive without a part"),
        (archive(("cloud-config", "- a\n")), "part 1: must be a mapping"),
        (
            archive(("cloud-config", CONFIG), ("plain", "hello")),
            "part 2: 'text/plain' is no type of cloud-init",
        ),
        (archive(("x-shellscript", "echo hello")), "part 1: 'text/x-shellscript' is no type"),
        (archive(*[("plain", SCRIPT)] * 101), "more than 100 parts"),
    ],
)
def test_what_cannot_work_is_refused_with_its_place(text: str, why: str) -> None:
    for before in ("", "\ufeff\n"):
        (violation,) = user_data_violations(before + text)
        assert violation.field == "spec.cloud_init_user_data"
        assert why in violation.message


def test_a_refusal_does_not_repeat_what_may_be_a_secret() -> None:
    secret = "hunter2"
    for text in (f"#cloud-config\npassword: [{secret}\n", f"#cloud-config-jsonp\n[{secret}\n", f"{secret}\n"):
        (violation,) = user_data_violations(text)
        assert secret not in violation.message
        assert "line" in violation.message or not text.startswith("#")


PARTS = st.sampled_from(
    [
        *(*HEADERS, "\n", "\ufeff", " ", "\r\n", "a: 1", "- a", "[", "{", "---", "#", "\ud800", "\0"),
        *("Content-Type: ", "multipart/mixed; boundary=b", "MIME-Version: 1.0", "--b", "--b--"),
        *("Content-Transfer-Encoding: base64", "=?x?b?x?="),
    ]
)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.lists(PARTS | st.text(max_size=4), max_size=12).map("".join))
@example("Content-Type: text/plain; charset=x\nMIME-Version: 1.0\nContent-Transfer-Encoding: uuencode\n\nx")
def test_any_text_is_taken_or_refused(text: str) -> None:
    """Accepted text begins as cloud-init knows it, and completing it again changes nothing."""
    if list(user_data_violations(text)):
        return
    complete = complete_user_data(text)
    assert complete_user_data(complete) == complete
    known = complete[:40].lower().startswith(tuple(HEADERS)) or "mime-version:" in complete[:4096].lower()
    assert known or not complete.strip()
    assert not list(user_data_violations(complete))


def test_the_size_of_an_archive_does_not_multiply_the_work() -> None:
    deep = "".join(f'Content-Type: multipart/mixed; boundary="{n}"\n\n--{n}\n' for n in range(2000))
    assert list(user_data_violations(f"MIME-Version: 1.0\n{deep}{SCRIPT}"))
    assert json.dumps([each.message for each in user_data_violations(f"#cloud-config-jsonp\n{deep}")])
