"""The page of every derived kind, as `get` and `create` print it: for people, and whole."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor

from neocloud.cli import output
from neocloud.cli.commands.products import hooks_of
from neocloud.cli.output import JsonObject, View
from neocloud.cli.resources.commands import PRODUCTS, _command_name
from neocloud.cli.resources.noun import Noun
from neocloud.cli.resources.pages import label_of, page
from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import PROJECT, FakeServer, operation
from tests.fast.cli.sample_answers import DEEPEST, answer_everything
from tests.fast.cli.test_help import commands
from tests.fast.cli.test_tables_in_terminals import LISTS, NOT_SHOWN, arguments_of

NO_PAGE = frozenset({"platform get", "session-management revoke", "oidc-federation set-client-secret"})
"""Answers without a field, and what has a list of its own."""
KINDS: Mapping[str, Noun] = {
    f"{product} {noun.name}": noun for product, each in PRODUCTS.items() for noun in each.nouns
}
PATH = re.compile(r"[a-z0-9]+_[a-z0-9_]+|\w\.\w|\w\[\d+\]|^(metadata|spec|status)\b")
"""Names of fields, and paths of them."""


def derived_pages() -> Iterator[str]:
    """Yield the commands that show one answer of a derived kind, from the tree of commands."""
    for name in LISTS:
        product, _, rest = name.partition(" ")
        noun, _, verb = rest.partition(" ")
        found = KINDS.get(f"{product} {noun}")
        hooks = hooks_of(product).get(noun)
        if found is None or (hooks and verb in hooks.commands) or name in NOT_SHOWN:
            continue
        verbs = {_command_name(each): each for each in found.verbs}
        if verb in verbs and not verbs[verb].startswith("List"):
            yield name


PAGES = list(derived_pages())


PREFIXES = ("STATE_", "SCHEDULING_STATE_")
"""Names of enums that the contract repeats in their values."""


def leaves(value: object) -> Iterator[str]:
    """Yield the texts of a JSON document except for numbers and for the version, which only programs need."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key != "resource_version":
                yield from leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
    elif isinstance(value, str) and value and not value.isdecimal():
        yield value


def shown(text: str) -> set[str]:
    """Return the ways in which a page may show the text of a JSON document."""
    if re.fullmatch(r"\d{4}-\d\d-\d\dT.*Z", text):
        return {f"{text[:10]} {text[11:19]} UTC"}
    special = {"86461s": "24 h 01 min", "c2FtcGxl": "6 bytes; --output yaml shows them"}
    words = {text, text.replace("_", " "), *(text.removeprefix(each) for each in PREFIXES)}
    return {special[text]} if text in special else words


@pytest.fixture
def views(monkeypatch: pytest.MonkeyPatch) -> list[View]:
    found: list[View] = []
    monkeypatch.setattr(output, "print_view", found.append)
    return found


def test_every_derived_kind_with_a_get_has_a_page() -> None:
    tree = {
        " ".join(path[1:])
        for path in commands()
        if len(path) == 4 and path[3] == "get" and " ".join(path[1:3]) in KINDS
    }
    own = {"tuning job get"}
    """Written by hand: it has a page with the evaluation."""
    assert tree - own <= set(PAGES)
    assert len(PAGES) > 45


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_for_people_and_whole(
    name: str, signed_in: Neo, cloud: FakeServer, views: list[View]
) -> None:
    answer_everything(cloud)
    assert signed_in(*arguments_of(name)).code == 0
    [view] = views
    labels = [row[0] for row in view.rows]
    assert not [label for label in labels if PATH.search(label)], labels
    values = "\n".join(row[1] for row in view.rows)
    ran = signed_in(*arguments_of(name), "--output", "json")
    missing = [
        text for text in leaves(json.loads(ran.out)) if not any(each in values for each in shown(text))
    ]
    assert not missing, view.rows
    assert not re.search(r"\d{4}-\d\d-\d\dT|\d:\d\d:\d\d(?! UTC)", values), "times have their zone"


SIZE = re.compile(r"\d[\d.]* (B|KiB|MiB|GiB)(/s)?(, \d[\d.]* (B|KiB|MiB|GiB))*")


@pytest.mark.parametrize("name", PAGES)
def test_sizes_have_units(name: str, signed_in: Neo, cloud: FakeServer, views: list[View]) -> None:
    product, noun, verb = name.split()
    found = KINDS[f"{product} {noun}"]
    rpc = found.rpc(next(each for each in found.verbs if _command_name(each) == verb))
    sizes = {
        label_of(each) for each in names_in(rpc.output.DESCRIPTOR) if re.search(r"_bytes|bibytes$", each)
    }
    answer_everything(cloud)
    assert signed_in(*arguments_of(name)).code == 0
    for label, value in views[0].rows:
        if label.strip() in sizes and value[:1].isdigit():
            assert SIZE.fullmatch(value), (label, value)


def names_in(descriptor: Descriptor, depth: int = 0) -> set[str]:
    names = {field.name for field in descriptor.fields}
    inside = [field.message_type for field in descriptor.fields if field.message_type and depth < DEEPEST]
    return names.union(*(names_in(each, depth + 1) for each in inside))


CREATED = [
    f"{kind} create"
    for kind, noun in KINDS.items()
    if "Create" in noun.verbs and f"{kind} create" not in ("compute instance create",)
]


@pytest.mark.parametrize("name", CREATED)
def test_create_prints_the_page_of_get(
    name: str, signed_in: Neo, cloud: FakeServer, views: list[View]
) -> None:
    answer_everything(cloud)
    noun = KINDS[name.removesuffix(" create")]
    cloud.serve(noun.rpc("Create").path, operation("x-e00new"))
    parent = ["--parent-id", "group-e00x"] if noun.parent.value == "given" else []
    ran = signed_in(*name.split(), "sample", *parent)
    assert ran.code == 0, ran.err
    [view] = views
    assert [row[0] for row in view.rows][0] == "Name"
    assert not [row[0] for row in view.rows if PATH.search(row[0])]


def test_what_is_referred_to_has_its_name(signed_in: Neo, cloud: FakeServer, views: list[View]) -> None:
    subnet = {"metadata": {"id": "vpcsubnet-e00abc", "name": "lab", "parent_id": PROJECT}}
    subnet |= {"spec": {"network_id": "vpcnetwork-e00abc"}, "status": {"state": "READY"}}
    cloud.serve("nebius.vpc.v1.SubnetService/Get", made("nebius.vpc.v1.Subnet", subnet))
    network = {"metadata": {"id": "vpcnetwork-e00abc", "name": "office"}}
    cloud.serve("nebius.vpc.v1.NetworkService/Get", made("nebius.vpc.v1.Network", network))
    assert signed_in("vpc", "subnet", "get", "vpcsubnet-e00abc").code == 0
    rows = by_label(views[0])
    assert rows["Network"] == "office (vpcnetwork-e00abc)"
    assert rows["Project"] == PROJECT, "its name cannot be read"
    assert list(rows) == ["Name", "Id", "Project", "State", "Network"]


def test_what_was_asked_for_and_what_there_is_are_said_once_if_they_are_the_same() -> None:
    spec, status = {"size_gibibytes": 20, "type": "NETWORK_SSD"}, {"size_bytes": str(20 * 1024**3)}
    view = page(made("nebius.compute.v1.Disk", {"spec": spec, "status": status, "metadata": {"name": "d"}}))
    assert by_label(view) == {"Name": "d", "Size": "20.0 GiB", "Type": "NETWORK_SSD"}
    status["size_bytes"] = str(10 * 1024**3)
    view = page(made("nebius.compute.v1.Disk", {"spec": spec, "status": status, "metadata": {"name": "d"}}))
    assert by_label(view)["Size"] == "20.0 GiB" and by_label(view)["Size now"] == "10.0 GiB"


def test_states_and_labels_are_without_names_of_types_and_versions() -> None:
    spec = {"compute_instance_spec": {"v1": {"platform": "gpu-h100-sxm"}}}
    spec |= {"pricing": {"max_price_v1": {"max_price": "1.50"}}}
    status = {"state": "STATE_ACTIVE", "scheduling_state": "SCHEDULING_STATE_ALLOWED"}
    view = page(
        made("nebius.billing.v1.PricingPolicy", {"metadata": {"name": "p"}, "spec": spec, "status": status})
    )
    assert by_label(view) == {
        "Name": "p",
        "State": "ACTIVE",
        "Compute instance platform": "gpu-h100-sxm",
        "Pricing max price": "1.50",
        "Scheduling state": "ALLOWED",
    }


def test_a_text_of_many_lines_is_counted_and_forges_no_row() -> None:
    spec = {
        "cloud_init_user_data": "#cloud-config\nruncmd: []\nState   STOPPED\n",
        "hostname": "a\rState\x1b[2J",
    }
    view = page(made("nebius.compute.v1.Instance", {"spec": spec}))
    assert by_label(view) == {
        "Cloud init user data": "3 lines; --output yaml shows them",
        "Hostname": "2 lines; --output yaml shows them",
    }


def by_label(view: View) -> dict[str, str]:
    return {row[0]: row[1] for row in view.rows}


def made(message: str, content: JsonObject) -> Any:
    return contract.from_dict(contract.message(message), content)
