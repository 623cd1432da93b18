import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocloud.core import contract


def test_new_ids_carry_their_type_and_differ() -> None:
    ids = {contract.new_id("computefilesystem") for _ in range(1000)}
    assert len(ids) == 1000
    assert all(contract.is_id(found) and contract.id_prefix(found) == "computefilesystem" for found in ids)


@settings(deadline=None)
@given(st.from_regex(r"[a-z][a-z0-9]{1,49}", fullmatch=True))
def test_every_type_of_the_grammar_makes_ids_of_the_grammar(prefix: str) -> None:
    assert contract.is_id(contract.new_id(prefix))


@pytest.mark.parametrize("prefix", ["", "a", "1a", "Project", "my-type", "a" * 51])
def test_a_type_outside_the_grammar_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="cannot be the type"):
        contract.new_id(prefix)


@pytest.mark.parametrize(
    "good", ["project-e00abc", "project-e00-default", "tenant-e00a1--x", "vpcsubnet-e00a-b"]
)
def test_ids_of_the_grammar(good: str) -> None:
    assert contract.is_id(good)


@pytest.mark.parametrize(
    "bad", ["", "project", "project-", "project-000abc", "Project-e00abc", "project-e00a_b"]
)
def test_text_that_is_no_id(bad: str) -> None:
    assert not contract.is_id(bad)
