"""The cost of owning, held to the published table: every row, both totals, and the errors in it, said.
TCO-01 to TCO-10, FORM-01 to FORM-03, FORM-18, ERR-12 to ERR-15."""

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from neocloud.core import contract
from neocloud.core.service import Call, Dependencies
from neocloud.services.billing.api.tco import estimate, list_model_choices, list_parameters
from neocloud.services.billing.tco.figures import Conversation, Hosted, break_even, published_cost, throughput
from neocloud.services.billing.tco.plan import parameters

NOTHING = cast(Any, None)
CLOCK = cast(Any, SimpleNamespace(now=lambda: datetime(2026, 1, 31, tzinfo=UTC)))
CALL = Call(None, "request", {}, Dependencies(NOTHING, CLOCK, NOTHING, NOTHING))
Request = contract.message("neocloud.billing.v1.EstimateTcoRequest")

PUBLISHED = [
    ("workers", 5, 5, "4.57", 16680, 16680),
    ("system nodes", 3, 9, "0.20", 438, 1314),
    ("controllers", 2, 2, "0.10", 146, 146),
    ("login", 1, 1, "0.10", 73, 73),
    ("accounting", 1, 1, "0.20", 146, 146),
    ("worker disks", 5, 5, "0.053", 148, 148),
    ("system node disks", 3, 9, "0.071", 27, 81),
    ("controller disks", 2, 2, "0.071", 18, 18),
    ("login disk", 1, 1, "0.071", 18, 18),
    ("accounting disk", 1, 1, "0.071", 9, 9),
    ("jail", 1, 1, "0.08", 20, 20),
    ("data", 1, 1, "0.08", 82, 82),
    ("checkpoints", 1, 1, "0.08", 82, 82),
    ("models", 1, 1, "0.08", 82, 82),
    ("home", 1, 1, "0.08", 20, 20),
    ("accounting data", 1, 1, "0.08", 20, 20),
    ("controller spool", 1, 1, "0.08", 10, 10),
    ("jail backups", 7, 7, "0.0147", 105, 105),
    ("configurations", 1, 1, "0.0147", 0, 0),
    ("public address", 1, 1, "0", 0, 0),
]


def ask(**request: Any) -> Any:
    return asyncio.run(estimate(CALL, contract.from_dict(Request, request)))


def asked(**values: Any) -> Any:
    return ask(values=[{"name": name, "value": str(value)} for name, value in values.items()])


def about(answer: Any, subject: str) -> str:
    return " ".join(note.text for note in answer.notes if note.about == subject)


def test_every_row_is_the_published_one_to_the_dollar() -> None:
    rows = [
        (row.name, row.minimum_units, row.maximum_units, row.unit_price, int(row.minimum), int(row.maximum))
        for row in ask().rows
    ]
    assert rows == PUBLISHED


def test_totals_are_the_published_ones_and_beside_them_the_right_ones() -> None:
    answer = ask()
    assert (answer.minimum, answer.maximum) == ("18124", "19054")
    assert (answer.exact_minimum, answer.exact_maximum) == ("18126.88", "19057.41")
    assert answer.currency == "USD"


def test_the_serving_table_is_the_published_one() -> None:
    answer = ask()
    assert answer.monthly_cost == "19000"
    rows = [
        (
            row.tokens_per_second,
            row.tokens_per_day,
            row.conversations_per_day,
            round(float(row.cost_per_chat), 2),
        )
        for row in answer.serving
    ]
    assert rows == [
        ("3.8", 328_320, 164, 3.86),
        ("60", 5_184_000, 2_592, 0.24),
        ("200", 17_280_000, 8_640, 0.07),
    ]


def test_errors_of_the_published_table_are_said() -> None:
    answer = ask()
    assert "$81; exactly it is $81.79" in about(answer, "system node disks")
    assert "$18,126.88 to $19,057.41" in about(answer, "")
    assert "7 x 256 GiB would be $26.34" in about(answer, "jail backups")
    assert "4 of 5 workers train" in about(answer, "cost per chat")
    assert "Neither counts the time that reading the context takes" in about(answer, "cost per chat")
    assert "puts the base at 22.99, not near 200" in about(answer, "optimised target")
    assert "marketing" in about(answer, "")


def test_notes_are_said_only_where_they_hold() -> None:
    answer = asked(backup_gib=256, workers=1, system_nodes_max=3)
    assert {"jail backups", "cost per chat", "system node disks"}.isdisjoint(
        note.about for note in answer.notes
    )
    assert "optimised target" not in {
        note.about for note in ask(scenarios=[{"name": "mine", "tokens_per_second": "41.5"}]).notes
    }


def test_another_size_is_computed_again() -> None:
    answer = asked(workers=4, worker_platform="gpu-h100-sxm", worker_preset="1gpu-16vcpu-200gb")
    assert answer.rows[0].minimum == "8614"  # 4 x 2.95 x 730
    assert answer.rows[5].minimum_units == 4
    assert Decimal(answer.minimum) == sum(Decimal(row.minimum) for row in answer.rows)


def test_a_minimum_beyond_the_maximum_raises_it() -> None:
    row = asked(system_nodes_min=12).rows[1]
    assert (row.minimum_units, row.maximum_units) == (12, 12)


def test_rows_of_ones_own_are_added() -> None:
    disk = {
        "name": "scratch",
        "storage": {"sku": "disk.network-ssd", "gibibytes": 100},
        "minimum": 2,
        "maximum": 4,
    }
    node = {"name": "notebooks", "node": {"platform": "cpu-d3", "preset": "4vcpu-16gb"}, "minimum": 1}
    answer = ask(items=[disk, node])
    assert [(row.name, row.minimum, row.maximum) for row in answer.rows[-2:]] == [
        ("scratch", "14", "28"),
        ("notebooks", "73", "73"),
    ]
    assert int(answer.minimum) == 18124 + 14 + 73


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        ({"values": [{"name": "wrokers", "value": "4"}]}, "'wrokers' is not a parameter; there are workers"),
        ({"values": [{"name": "workers", "value": "four"}]}, "workers must be a whole number from 0"),
        ({"values": [{"name": "workers", "value": "-1"}]}, "workers must be a whole number from 0"),
        ({"values": [{"name": "monthly_cost", "value": "1e9"}]}, "must be an amount such as 19000"),
        ({"values": [{"name": "workers", "value": "4"}] * 2}, "is given twice"),
        (
            {"values": [{"name": "worker_platform", "value": "gpu-x"}]},
            '"gpu-x" is not a platform; choose from',
        ),
        (
            {"items": [{"name": "a", "storage": {"sku": "cpu-d3.vcpu", "gibibytes": 1}, "minimum": 1}]},
            "has no price by the GiB and month; SKUs with one",
        ),
        (
            {"items": [{"name": "a", "storage": {"sku": "disk.network-ssd"}, "minimum": 2, "maximum": 1}]},
            "is less than the minimum",
        ),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(request_: dict[str, Any], complaint: str) -> None:
    with pytest.raises(contract.ApiError) as refused:
        ask(**request_)
    assert complaint in refused.value.message


def test_hosted_and_own_meet_at_the_break_even() -> None:
    """FORM-18: 6K in and 2K out on llama-3.1-70b."""
    chat, llama = Conversation(6000, 2000), Hosted("llama-3.1-70b", Decimal("0.13"), Decimal("0.40"))
    assert llama.cost_per_chat(chat) == Decimal("0.00158")
    answer = ask(hosted_models=[{"name": "llama-3.1-70b", "input_price": "0.13", "output_price": "0.40"}])
    [row] = answer.hosted
    assert row.cost_per_chat == "0.001580"
    conversations = row.break_even_conversations_per_day
    at, before = (Decimal(19000) / 30 / many for many in (conversations, conversations - 1))
    assert at <= Decimal("0.00158") < before
    assert Decimal(row.break_even_tokens_per_second) == round(Decimal(conversations * 2000) / 86400, 1)
    assert row.break_even_conversations_per_day_of_worker < conversations
    assert "1 of 1 hosted models are cheaper than the whole month at any speed" in about(answer, "break-even")


def test_a_free_hosted_model_is_never_beaten_and_no_speed_serves_nobody() -> None:
    chat = Conversation(6000, 2000)
    assert break_even(Decimal(19000), Hosted("free", Decimal(0), Decimal(0)), chat) is None
    assert throughput(Decimal("0.01"), chat).cost_per_chat(Decimal(19000)) is None
    assert throughput(Decimal(60), Conversation(6000, 0)).conversations_per_day == 0


def test_two_digits_of_the_maximum_are_the_month() -> None:
    assert [published_cost(Decimal(amount)) for amount in (19054, 430, 7, 0)] == [19000, 430, 7, 0]


def test_parameters_and_the_guide_can_be_read() -> None:
    listed = asyncio.run(list_parameters(CALL, NOTHING)).items
    assert [each.name for each in listed] == [each.name for each in parameters()]
    assert all(each.about for each in listed)
    questions = " ".join(each.question for each in asyncio.run(list_model_choices(CALL, NOTHING)).items)
    for word in ("task", "resources", "domain", "adoption", "environment", "deployment"):
        assert word in questions
