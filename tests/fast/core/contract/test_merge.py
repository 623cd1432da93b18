"""The Update rules of the published contract: non-default in the request, or named in the mask."""

from typing import Any

import pytest

from neocloud.core import contract
from neocloud.core.contract import merge_update, parse_mask

Cluster = contract.message("neocloud.slurm.v1.Cluster")
UpdateCluster = contract.message("neocloud.slurm.v1.UpdateClusterRequest")
Filesystem = contract.message("nebius.compute.v1.Filesystem")
UpdateFilesystem = contract.message("nebius.compute.v1.UpdateFilesystemRequest")


def cluster(**spec: Any) -> Any:
    return Cluster(
        metadata={"id": "c", "parent_id": "p", "name": "bank", "resource_version": 3, "labels": {"a": "1"}},
        spec=spec,
        status={"slurm_version": "24.11"},
    )


def merged(current: Any, mask: str = "", **request: Any) -> Any:
    update = UpdateFilesystem if isinstance(current, Filesystem) else UpdateCluster
    return merge_update(current, update(**request), parse_mask(mask))


def test_what_is_not_mentioned_stays() -> None:
    current = cluster(login={"port": 22})
    assert merged(current, metadata={"id": "c"}) == current


def test_a_value_in_the_request_replaces() -> None:
    result = merged(cluster(login={"port": 22}), spec={"login": {"port": 2222}})
    assert result.spec.login.port == 2222


def test_a_default_value_changes_nothing_unless_masked() -> None:
    current = cluster(login={"port": 22, "ssh_public_keys": ["k"]})
    assert merged(current, spec={"login": {"port": 0}}).spec.login.port == 22
    result = merged(current, "spec.login.port", spec={"login": {"port": 0}})
    assert (result.spec.login.port, list(result.spec.login.ssh_public_keys)) == (0, ["k"])


def test_an_absent_message_is_cleared_when_a_path_in_it_is_masked() -> None:
    current = cluster(login={"port": 22}, shared_root={"size_gibibytes": 5})
    result = merged(current, "spec.login.port", spec={})
    assert not result.spec.HasField("login")
    assert result.spec.shared_root.size_gibibytes == 5


def test_a_spec_that_is_left_out_stays_although_clients_mask_it() -> None:
    """The SDK's own mask for a request that changes nothing but labels names the whole spec."""
    current = cluster(login={"port": 22})
    result = merged(current, "metadata.(name,parent_id),spec", metadata={"labels": {"b": "2"}})
    assert result.spec == current.spec


def test_lists_are_merged_by_element_then_cut_or_extended() -> None:
    current = cluster(node_sets=[{"name": "a", "preset": "p", "count": 1}, {"name": "b", "count": 2}])
    shorter = merged(current, spec={"node_sets": [{"count": 5}]})
    assert [(n.name, n.preset, n.count) for n in shorter.spec.node_sets] == [("a", "p", 5)]
    longer = merged(current, spec={"node_sets": [{}, {}, {"name": "c"}]})
    assert [n.name for n in longer.spec.node_sets] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "mask", ["spec.node_sets.*.count", "spec.node_sets.0.count", "spec.node_sets.(*.(count))"]
)
def test_an_element_is_emptied_by_wildcard_or_index(mask: str) -> None:
    """SLURM: scaling a set of nodes down to none."""
    current = cluster(node_sets=[{"name": "a", "count": 4}])
    result = merged(current, mask, spec={"node_sets": [{"name": "a"}]})
    assert (result.spec.node_sets[0].name, result.spec.node_sets[0].count) == ("a", 0)


def test_a_list_is_emptied_only_by_the_mask() -> None:
    current = cluster(login={"ssh_public_keys": ["k"]})
    assert list(merged(current, spec={"login": {}}).spec.login.ssh_public_keys) == ["k"]
    emptied = merged(current, "spec.login.ssh_public_keys", spec={"login": {}})
    assert not emptied.spec.login.ssh_public_keys


def test_a_map_is_replaced_by_the_incoming_keys() -> None:
    current = cluster()
    assert dict(merged(current, metadata={"labels": {"b": "2"}}).metadata.labels) == {"b": "2"}
    assert dict(merged(current, metadata={"name": "n"}).metadata.labels) == {"a": "1"}
    assert dict(merged(current, "metadata.labels", metadata={"name": "n"}).metadata.labels) == {}


def test_what_only_the_cloud_sets_is_ignored_even_when_masked() -> None:
    current = cluster()
    mask = "metadata.(id,parent_id,name,resource_version,created_at,updated_at),status"
    result = merged(current, mask, metadata={"id": "other", "resource_version": 9})
    assert result == current


def test_a_name_can_be_changed_but_not_reset() -> None:
    assert merged(cluster(), "metadata.name", metadata={"name": "new"}).metadata.name == "new"
    assert merged(cluster(), "metadata.name", metadata={"id": "c"}).metadata.name == "bank"


def test_a_masked_sibling_of_a_oneof_does_not_clear_the_active_member() -> None:
    """The SDK lists every unset sibling in its mask."""
    current = Filesystem(spec={"size_gibibytes": 10})
    mask = "spec.(size_bytes,size_kibibytes,size_mebibytes)"
    assert merged(current, mask, spec={"size_gibibytes": 20}).spec.size_gibibytes == 20
    assert merged(current, mask, spec={"forbid_deletion": True}).spec.size_gibibytes == 10
    assert merged(current, "spec.size_gibibytes", spec={}).spec.WhichOneof("size") is None


def test_switching_a_oneof_takes_the_new_member() -> None:
    current = Filesystem(spec={"size_gibibytes": 10})
    result = merged(current, "spec.size_gibibytes", spec={"size_bytes": 4096})
    assert result.spec.WhichOneof("size") == "size_bytes"


def test_a_message_that_is_present_and_empty_stays_present() -> None:
    instance = contract.message("nebius.compute.v1.Instance")()
    request = contract.message("nebius.compute.v1.UpdateInstanceRequest")(spec={"gpu_cluster": {}})
    assert merge_update(instance, request, parse_mask("")).spec.HasField("gpu_cluster")


def test_the_arguments_are_not_changed() -> None:
    current, before = cluster(login={"port": 22}), cluster(login={"port": 22})
    merged(current, "spec.login", spec={"login": {"port": 7}})
    assert current == before


@pytest.mark.parametrize("mask", ["a..b", "(a", "a)", "a,,b", '"a', "a b", "x" * 70_000])
def test_a_mask_that_cannot_be_read_is_an_invalid_argument(mask: str) -> None:
    with pytest.raises(contract.ApiError) as caught:
        parse_mask(mask)
    assert caught.value.code is contract.Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("mask", "path", "is_named"),
    [
        ("a.b", ["a", "b"], True),
        ("a.b", ["a"], True),
        ("a.b", ["b"], False),
        ("a.(b,c.*)", ["a", "c", "7"], True),
        ('labels."my key"', ["labels", "my key"], True),
        ("*.b,a.c", ["a", "b"], True),
        ("*.b,a.c", ["a", "c"], True),
        ("", ["a"], False),
    ],
)
def test_paths_of_a_mask(mask: str, path: list[str], is_named: bool) -> None:
    found = parse_mask(mask)
    for part in path:
        found = found.child(part) if found else None
    assert (found is not None) == is_named
