"""The lineage of a model as a tree of text in 80 columns."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from neocloud.cli.terminal import one_line
from neocloud.client.errors import ClientError
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.messages.neocloud.tuning.v1 import Lineage, LineageNode

WIDTH = 80
SHOWN_DIGITS = 12
"""Digits of a digest; the document has all."""
REPORTED = "*"
CAUSES = {
    "made by": "made by",
    "trained on": "data",
    "validated on": "validation data",
    "configured by": "configuration",
    "started from": "base",
    "builds on": "builds on",
}
"""Labels of causes beside what was made of them, by the relation, in their order."""
RESULTS = {
    "saved by": "checkpoint",
    "serves": "served by",
    "through": "tokens",
    "builds on": "adapter",
}
SHOWN_FACTS: Mapping[str, Sequence[str]] = {
    "DATA_SET": ("rows", "size_bytes", "training rows", "held_out rows", "split", "split_seed"),
    "JOB": (
        *("ran_on", "method", "seconds", "attempts", "seed", "n_epochs", "batch_size", "learning_rate"),
        "lora_r",
        *("trained_tokens", "recipe", "package torch", "nodes", "processes", "processor", "device"),
    ),
    "MODEL": ("origin", "source", "license", "lora_rank"),
    "CONFIGURATION": ("version",),
    "CHECKPOINT": ("valid_loss",),
    "EVALUATION": (
        "base_perplexity",
        "fine_tuned_perplexity",
        "perplexity_improvement",
        "base_reward",
        "fine_tuned_reward",
        "conversations",
        "gate",
    ),
    "DEPLOYMENT": ("runs_on", "charge"),
    "TOKENS": ("input", "cached-input", "output", "project"),
    "COST": ("total", "without a price"),
}
_DIGESTS = frozenset({"recipe"})


@dataclass(frozen=True)
class Branch:
    label: str
    node: "LineageNode"
    branches: list["Branch"] = field(default_factory=list["Branch"])


def tree_lines(graph: "Lineage", model_id: str) -> list[str]:
    """Return the lines: the model, under it its causes, each with its own, and then its results."""
    tree, key = _Tree(graph), f"model:{model_id}"
    if key not in tree.nodes:
        raise ClientError("INTERNAL", f"The cloud's answer has no {key}", "Try again; tell its operator")
    root = tree.branch("model", key)
    lines = list(_lines(root, "", ""))
    if any(each.is_reported for node in graph.nodes for each in node.facts):
        lines += ["", f"{REPORTED} reported by the job, whose user can write it"]
    for notice in graph.notices:
        lines += ["", *textwrap.wrap(one_line(notice), WIDTH)]
    return lines


class _Tree:
    def __init__(self, graph: "Lineage") -> None:
        self.nodes = {node.key: node for node in graph.nodes}
        self._edges = list(graph.edges)
        self._shown = set[str]()

    def branch(self, label: str, key: str, *, is_result: bool = False) -> Branch:
        """Return a node with its causes, unless it is a result, and its results. A node that is shown above
        has no branches."""
        found = Branch(label, self.nodes[key])
        if key in self._shown:
            return found
        self._shown.add(key)
        is_root = len(self._shown) == 1
        if not is_result:
            found.branches.extend(self._causes(key))
        found.branches.extend(self._results(key, all_of_them=is_root or is_result))
        return found

    def _causes(self, key: str) -> Iterator[Branch]:
        for relation, label in CAUSES.items():
            for edge in self._edges:
                if edge.target == key and edge.relation == relation and edge.source in self.nodes:
                    yield self.branch(label, edge.source)

    def _results(self, key: str, *, all_of_them: bool) -> Iterator[Branch]:
        """Yield the results of a node; of a cause only its cost, checkpoints and evaluation."""
        for edge in self._edges:
            if edge.source != key or edge.target not in self.nodes:
                continue
            if edge.relation == "of":
                yield self.branch(_type(self.nodes[edge.target]).lower(), edge.target, is_result=True)
            elif edge.relation in RESULTS and (all_of_them or edge.relation == "saved by"):
                yield self.branch(RESULTS[edge.relation], edge.target, is_result=True)


def _lines(branch: Branch, first: str, rest: str) -> Iterator[str]:
    """Yield the lines of a branch: `first` begins the first line, and `rest` all others."""
    inner = rest + ("│  " if branch.branches else "   ")
    name, details = _title(branch.node), ", ".join(_details(branch.node))
    title = f"{branch.label}: {name or details}"
    yield from textwrap.wrap(
        title, WIDTH, initial_indent=first, subsequent_indent=inner, break_long_words=True
    )
    if name and details:
        yield from textwrap.wrap(details, WIDTH, initial_indent=inner, subsequent_indent=inner)
    for number, each in enumerate(branch.branches, start=1):
        is_last = number == len(branch.branches)
        yield from _lines(each, rest + ("└─ " if is_last else "├─ "), rest + ("   " if is_last else "│  "))


def _title(node: "LineageNode") -> str:
    names = dict.fromkeys(one_line(each) for each in (node.name, node.id) if each)
    state = one_line(node.state) if node.state not in ("", "READY") else ""
    when = (
        f"{contract.to_datetime(node.created_at):%Y-%m-%d %H:%M} UTC" if node.HasField("created_at") else ""
    )
    if _type(node) in ("TOKENS", "COST"):
        when = when and f"since {when}"
    return "  ".join(filter(None, (*names, state, when)))


def _details(node: "LineageNode") -> Iterator[str]:
    if node.digest:
        yield f"sha256 {node.digest[:SHOWN_DIGITS]}"
    facts = {each.name: each for each in node.facts}
    for name in SHOWN_FACTS.get(_type(node), ()):
        if name in facts:
            value = one_line(facts[name].value)
            shown = value[:SHOWN_DIGITS] if name in _DIGESTS else value
            yield f"{name.replace('_', ' ')} {shown}{REPORTED if facts[name].is_reported else ''}"
    left_out = [each for each in node.facts if each.name.startswith("left_out ") and each.value != "0"]
    yield from (
        f"{one_line(each.name.replace('_', ' '))} {one_line(each.value)}{REPORTED}" for each in left_out
    )
    if node.not_recorded:
        yield f"not recorded: {', '.join(map(one_line, node.not_recorded))}"


def _type(node: "LineageNode") -> str:
    return node.Type.Name(node.type)
