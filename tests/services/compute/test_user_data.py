"""User data as clients in the wild send it: CMP-08."""

import pytest

from neocloud.services.compute.rules.instance import complete_user_data, user_data_violations


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("users:\n- name: ubuntu\n", "#cloud-config\nusers:\n- name: ubuntu\n"),
        ("#cloud-config\nusers: []\n", "#cloud-config\nusers: []\n"),
        ("#!/bin/sh\necho hello\n", "#!/bin/sh\necho hello\n"),
        ("## template: jinja\n#cloud-config\n", "## template: jinja\n#cloud-config\n"),
        ("Content-Type: multipart/mixed\n\n", "Content-Type: multipart/mixed\n\n"),
        ("", ""),
    ],
)
def test_a_missing_first_line_is_put_in_front(text: str, complete: str) -> None:
    assert complete_user_data(text) == complete
    assert list(user_data_violations(text)) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("#cloud-config\nusers: [\n", "is not valid YAML under #cloud-config"),
        ("#cloud-config\n- a\n- list\n", "must be a mapping"),
        ("users: [\n", "is not in a format of cloud-init"),
        ("hello\n", "is not in a format of cloud-init"),
        ("#!/bin/sh\0", "zero byte"),
    ],
)
def test_what_cannot_work_is_refused_with_its_place(text: str, why: str) -> None:
    (violation,) = user_data_violations(text)
    assert violation.field == "spec.cloud_init_user_data"
    assert why in violation.message


def test_a_refusal_does_not_repeat_what_may_be_a_secret() -> None:
    (violation,) = user_data_violations("#cloud-config\npassword: [hunter2\n")
    assert "hunter2" not in violation.message and "line" in violation.message
