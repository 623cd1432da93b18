"""Secret fields of resources: which parts hold them, and how an update by somebody who cannot see them keeps
them."""

from typing import Any

from neocloud.core import contract

Instance = contract.message("nebius.compute.v1.Instance")
InstanceSpec = contract.message("nebius.compute.v1.InstanceSpec")
EndpointSpec = contract.message("nebius.ai.v1.EndpointSpec")


def endpoint(*variables: tuple[str, str]) -> Any:
    return EndpointSpec(environment_variables=[{"name": name, "value": value} for name, value in variables])


def test_the_parts_that_hold_secrets_are_read_from_the_contract() -> None:
    assert contract.secret_parts("nebius.compute.v1.Instance") == {"spec"}
    assert contract.secret_parts("nebius.ai.v1.Endpoint") == {"spec"}
    assert contract.secret_parts("nebius.iam.v2.AccessKey") == {"status"}
    assert contract.secret_parts("nebius.compute.v1.Disk") == set()
    assert contract.secret_parts("no.such.Kind") == set()


def test_secrets_are_seen_only_where_there_are_any() -> None:
    assert contract.holds_secrets(Instance(spec={"cloud_init_user_data": "x"}))
    assert not contract.holds_secrets(Instance(spec={"stopped": True}))


def test_a_blank_secret_is_filled_in_and_a_new_one_stays() -> None:
    current = InstanceSpec(cloud_init_user_data="old", stopped=True)
    blank, changed = InstanceSpec(), InstanceSpec(cloud_init_user_data="new")
    contract.keep_secrets(blank, current)
    contract.keep_secrets(changed, current)
    assert (blank.cloud_init_user_data, blank.stopped) == ("old", False)
    assert changed.cloud_init_user_data == "new"


def test_elements_of_lists_keep_their_own_secrets() -> None:
    current = endpoint(("A", "1"), ("B", "2"), ("C", "3"))
    asked = endpoint(("C", ""), ("NEW", "4"), ("A", ""))
    contract.keep_secrets(asked, current)
    assert asked == endpoint(("C", "3"), ("NEW", "4"), ("A", "1"))


def test_another_member_of_a_oneof_is_not_undone() -> None:
    current = endpoint(("A", "1"))
    asked = EndpointSpec(environment_variables=[{"name": "A", "mysterybox_secret": {"secret_id": "s"}}])
    before = type(asked).FromString(asked.SerializeToString())
    contract.keep_secrets(asked, current)
    assert asked == before


def test_a_message_that_was_left_out_stays_out() -> None:
    current = EndpointSpec(registry_credentials={"username": "u", "password": "p"})
    absent, blank = EndpointSpec(), EndpointSpec(registry_credentials={"username": "u"})
    contract.keep_secrets(absent, current)
    contract.keep_secrets(blank, current)
    assert not absent.HasField("registry_credentials")
    assert blank == current
