"""The quota file, and the small sums: pure."""

import pytest

from neocloud.services.quotas.rules import (
    QuotaFileError,
    allowance_id,
    amount,
    default_quotas,
    load_quotas,
    parent_of,
    parse_quotas,
    usage_percentage,
)


@pytest.mark.parametrize(
    ("usage", "limit", "share"),
    [
        (0, 10, "0.0"),
        (12, 100, "0.12"),
        (1, 3, "0.33"),
        (10, 10, "1.0"),
        (15, 10, "1.5"),
        (0, 0, "0.0"),
        (1, 0, "1.0"),
    ],
)
def test_usage_is_a_share_of_the_limit(usage: int, limit: int, share: str) -> None:
    assert usage_percentage(usage, limit) == share


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(3, "count", "3"), (512, "byte", "512 bytes"), (3 << 29, "byte", "1.5 GiB"), (4 << 50, "byte", "4 PiB")],
)
def test_amounts_are_readable(value: int, unit: str, text: str) -> None:
    assert amount(value, unit) == text


def test_gpus_start_with_eight_for_a_tenant() -> None:
    gpus = [quota.limit for name, quota in default_quotas().items() if ".gpu." in name]
    assert set(gpus) == {8}


def test_names_begin_with_their_service() -> None:
    for name, quota in default_quotas().items():
        assert name.startswith(f"{quota.service}."), name


@pytest.mark.parametrize(
    "parent", ["project-e00abc", "tenant-e00abc", "project-u00default-x", "tenant-e00a1-b2"]
)
def test_an_id_leads_back_to_its_container(parent: str) -> None:
    assert parent_of(allowance_id(parent, "compute.disk.count")) == parent


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[", "is not YAML"),
        ("a: b", "must be a list of services"),
        ("- {service: a, title: A, quotas: [{name: a.b, limit: -1, title: x}]}", "a.b: limit must be"),
        ("- {service: a, title: A, quotas: [{name: a.b, limit: true, title: x}]}", "a.b: limit must be"),
        ("- {service: a, title: A, quotas: [{name: a.b, limit: 1, unit: GiB, title: x}]}", "count or byte"),
        ("- {service: a, title: A, quotas: [&q {name: a.b, limit: 1, title: x}, *q]}", "same name twice"),
    ],
)
def test_a_faulty_file_is_told_where_it_is_wrong(text: str, told: str) -> None:
    with pytest.raises(QuotaFileError, match=told):
        parse_quotas(text, "my.yaml")


def test_a_missing_file_is_told(tmp_path) -> None:
    with pytest.raises(QuotaFileError, match="Check --quota-file"):
        load_quotas(tmp_path / "none.yaml")
