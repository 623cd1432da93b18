import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocloud.core import contract


@settings(deadline=None)
@given(st.text(min_size=1), st.text())
def test_a_token_leads_back_to_its_place(after: str, scope: str) -> None:
    assert contract.page_after(contract.page_token(after, scope), scope) == after


def test_no_place_is_no_token() -> None:
    assert contract.page_token("", "list") == ""
    assert contract.page_after("", "list") == ""


@pytest.mark.parametrize(
    "change", [lambda t: t + "A", lambda t: t[:-1], lambda t: "A" + t[1:], lambda t: "%%"]
)
def test_a_damaged_token_is_refused(change) -> None:
    token = contract.page_token("2026-01-01 42", "list")
    with pytest.raises(contract.ApiError) as caught:
        contract.page_after(change(token), "list")
    assert caught.value.code is contract.Code.INVALID_ARGUMENT


def test_a_token_of_another_list_is_refused() -> None:
    with pytest.raises(contract.ApiError, match="not a token of this list"):
        contract.page_after(contract.page_token("42", "one"), "two")
