"""Build the commands of a product: `neo compute filesystem create --name data --size-gibibytes 10`.

Each command is a function made from a noun, a verb and the flags of its request. Typer reads a function's
signature, so this module builds the signature.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from neocloud.cli.lazy import command_group, take
from neocloud.cli.output import DryRunOption, Format, OutputOption, YesOption
from neocloud.cli.resources import verbs
from neocloud.cli.resources.deletion import ForceOption
from neocloud.cli.resources.flags import Flag, flags_of, option
from neocloud.cli.resources.lookup import names_of
from neocloud.cli.resources.names import refers
from neocloud.cli.resources.noun import OTHER_VERBS, Hooks, Noun, Parent, kebab
from neocloud.cli.resources.products import PRODUCTS

IDENTITY = ("metadata",)
HIDDEN_IN_LISTS = {"page_size", "page_token", "filter"}
"""The API does not define a language for `filter`, and a cloud refuses it."""
PROJECT_HELP = "Id or name of the project. Default: the profile's."
Body = Callable[..., None]


def product_app(name: str, hooks: Hooks | None = None) -> typer.Typer:
    """Return the command group of one product, with what is written for its nouns."""
    product = PRODUCTS[name]
    lines = "\n".join(f"  {example}" for example in product.examples)
    app = command_group(f"{product.about}\n\nExamples:\n\n{lines}\n")
    add_nouns(app, name, hooks)
    return app


def add_nouns(app: typer.Typer, product: str, hooks: Hooks | None = None) -> None:
    """Add a group of commands for each noun of the product."""
    for derived in PRODUCTS[product].nouns:
        noun = replace(derived, hooks=(hooks or {}).get(derived.name, derived.hooks))
        group = command_group(f"{noun.about}\n\n{_group_example(product, noun)}")
        own = noun.hooks.commands
        for verb in noun.verbs:
            name = _command_name(verb)
            if name not in own and (verb != "GetByName" or "Get" not in noun.verbs):
                _add(group, product, noun, verb)
        for name, command in own.items():
            group.command(name)(command)
        app.add_typer(group, name=noun.name)


def _command_name(verb: str) -> str:
    return "get" if verb == "GetByName" else kebab(verb)


def _add(group: typer.Typer, product: str, noun: Noun, verb: str) -> None:
    known = {"Update": _update, "Get": _get, "GetByName": _get, "Delete": _delete, "Issue": _issue}
    build = known.get(verb, _create if verb.startswith("Create") else _other)
    parameters, body, about, example = build(noun, verb)
    name = _command_name(verb)

    def command(**given: Any) -> None:
        body(noun, verb, given)

    take(command, {"context": (typer.Context, inspect.Parameter.empty), **parameters})
    command.__doc__ = f"{about}\n\nExample:\n\n  neo {product} {noun.name} {name} {example}".rstrip()
    group.command(name)(command)


Parameters = dict[str, tuple[Any, Any]]
Built = tuple[Parameters, Body, str, str]


def _create(noun: Noun, verb: str) -> Built:
    flags = [flag for flag in flags_of(noun.rpc(verb).input.DESCRIPTOR) if flag.path[:1] != IDENTITY]
    parameters: Parameters = {
        **_new_name(noun),
        **_parent(noun),
        **_flag_parameters(flags, noun),
        **_labels(),
        **_file("Read the resource from a YAML or JSON file; flags override it."),
        **_no_wait(),
        "dry_run": (DryRunOption, False),
        **_output(),
    }
    return parameters, verbs.create(flags), f"Create {noun.one} and wait until it is ready.", noun.example


def _issue(noun: Noun, verb: str) -> Built:
    """Build the parameters of a verb that creates a resource and answers with a secret."""
    parameters, _, _, example = _create(noun, verb)
    flags = [flag for flag in flags_of(noun.rpc(verb).input.DESCRIPTOR) if flag.path[:1] != IDENTITY]
    del parameters["no_wait"], parameters["file"], parameters["dry_run"]
    return parameters, verbs.issue(flags), f"Create {noun.one}; its token is shown only once.", example


def _update(noun: Noun, verb: str) -> Built:
    flags = [flag for flag in flags_of(noun.rpc(verb).input.DESCRIPTOR) if flag.path[:1] != IDENTITY]
    parameters: Parameters = {
        **_target(noun),
        "name": (Annotated[str, typer.Option(help="New name.")], ""),
        **_flag_parameters(flags, noun),
        **_labels(),
        **_file("Read new values from a YAML or JSON file; other fields keep their values."),
        **_no_wait(),
        **_output(),
    }
    about = f"Change {noun.one}; other fields keep their values."
    return parameters, verbs.update(flags), about, f"{_target_example(noun)} --label team=risk"


def _get(noun: Noun, verb: str) -> Built:
    if not {"id", "name"} & set(noun.rpc(verb).input.DESCRIPTOR.fields_by_name):
        return _other(noun, verb)
    parameters: Parameters = {**_target(noun), **_output()}
    return parameters, verbs.get, f"Show one {noun.words}.", _target_example(noun)


def _delete(noun: Noun, verb: str) -> Built:
    parameters: Parameters = {
        **_target(noun, is_exact=True),
        "yes": (YesOption, False),
        "force": (ForceOption, False),
        **_no_wait(),
    }
    return parameters, verbs.delete, f"Delete {noun.one}.", f"{_target_example(noun)} --yes"


def _other(noun: Noun, verb: str) -> Built:
    """Build the parameters of a list or of a verb of the noun's own."""
    request = noun.rpc(verb).input.DESCRIPTOR
    flags = [flag for flag in flags_of(request) if flag.path not in (("id",), ("parent_id",))]
    flags = [flag for flag in flags if flag.path[-1] not in HIDDEN_IN_LISTS]
    parameters: Parameters = {
        **(_target(noun) if "id" in request.fields_by_name else {}),
        **(_parent(noun) if "parent_id" in request.fields_by_name or _needs_project(noun, flags) else {}),
        **_flag_parameters(flags, noun),
        **_output(),
    }
    if "id" in request.fields_by_name:
        example = _target_example(noun)
    else:
        example = _parent_example(noun) if "parent_id" in request.fields_by_name else ""
    if not example and flags and verb != "List":
        example = _sample(flags[0])
    return parameters, verbs.call(flags), _about(noun, verb), example


def _needs_project(noun: Noun, flags: list[Flag]) -> bool:
    """Return whether names among the flags are those of a project, although the request has no parent."""
    return noun.parent is Parent.PROJECT and any(refers(flag.path) for flag in flags)


def _about(noun: Noun, verb: str) -> str:
    if verb == "Get":  # of a noun that has neither id nor name
        return noun.about
    if verb != "List":
        return OTHER_VERBS[verb].format(those=noun.plural)
    owners = {Parent.NOTHING: "", Parent.GIVEN: f" of one {_parent_words(noun)}"}
    return f"List {noun.plural}{owners.get(noun.parent, f' in the {noun.parent}')}."


def _target_example(noun: Noun) -> str:
    """Return how the example of a verb names the resource: a name can only be looked up in its parent."""
    return f"NAME {_parent_example(noun)}".rstrip() if "GetByName" in noun.verbs else "ID"


def _parent_example(noun: Noun) -> str:
    return f"--{kebab(_parent_noun(noun))} NAME" if noun.parent is Parent.GIVEN else ""


def _parent_words(noun: Noun) -> str:
    return kebab(_parent_noun(noun)).replace("-", " ")


def _parent_noun(noun: Noun) -> str:
    return noun.parent_service.rpartition(".")[2].removesuffix("Service")


def _target(noun: Noun, *, is_exact: bool = False) -> Parameters:
    text = f"Id or name of the {noun.words}" if "GetByName" in noun.verbs else f"Id of the {noun.words}"
    _, other = noun.also_known_as
    text += f", or {other}." if other and not is_exact else "."
    metavar = "ID|NAME" if "GetByName" in noun.verbs else "ID"
    parent: Parameters = _parent(noun) if "GetByName" in noun.verbs else {}
    is_listed = "List" in noun.verbs and noun.parent is Parent.PROJECT
    complete = names_of(noun.service) if is_listed else None
    argument = typer.Argument(help=text, metavar=metavar, autocompletion=complete)
    return {
        "target": (Annotated[str, argument], inspect.Parameter.empty),
        **parent,
    }


def _parent(noun: Noun) -> Parameters:
    if noun.parent is Parent.NOTHING:
        return {}
    if noun.parent is Parent.GIVEN:
        names = ("--parent-id", f"--{kebab(_parent_noun(noun))}")
        text = f"Id or name of the {_parent_words(noun)}."
        return {"parent_id": (Annotated[str, typer.Option(*names, help=text)], inspect.Parameter.empty)}
    if noun.parent is Parent.PROJECT:
        project = typer.Option("--parent-id", "--project", help=PROJECT_HELP, show_default=False)
        return {"parent_id": (Annotated[str, project], "")}
    text = f"Id or name of the {noun.parent}. Default: the profile's."
    return {"parent_id": (Annotated[str, typer.Option(help=text, show_default=False)], "")}


def _flag_parameters(flags: list[Flag], noun: Noun) -> Parameters:
    shortcuts = dict(noun.shortcuts)
    words = {
        flag.parameter: [shortcuts[path]] for flag in flags if (path := ".".join(flag.path)) in shortcuts
    }

    def is_refused(flag: Flag) -> bool:
        return ".".join(flag.path).startswith(noun.refused)

    return {
        flag.parameter: (option(flag, *words.get(flag.parameter, ()), hidden=is_refused(flag)), None)
        for flag in flags
    }


def _new_name(noun: Noun) -> Parameters:
    """Return the argument NAME; `--name`, which it replaces, is still accepted in this release."""
    text = f"Name of the new {noun.words}."
    argument = typer.Argument(help=text, metavar="NAME", show_default=False)
    return {
        "name": (Annotated[str, argument], ""),
        "name_option": (Annotated[str, typer.Option("--name", hidden=True)], ""),
    }


def _labels() -> Parameters:
    text = "NAME=VALUE; repeatable."
    return {"label": (Annotated[list[str] | None, typer.Option(help=text, metavar="NAME=VALUE")], None)}


def _file(text: str) -> Parameters:
    return {"file": (Annotated[Path | None, typer.Option("--file", "-f", help=text)], None)}


def _no_wait() -> Parameters:
    return {
        "no_wait": (
            Annotated[bool, typer.Option("--no-wait", help="Return without waiting for the operation.")],
            False,
        )
    }


def _output() -> Parameters:
    return {"output": (OutputOption, Format.TABLE)}


def _sample(flag: Flag) -> str:
    """Return a plausible use of a flag for the example."""
    samples: Mapping[Any, str] = {int | None: "10", bool | None: "", float | None: "0.5"}
    word = "ID" if flag.option.endswith("-id") else "VALUE"
    value = samples.get(flag.annotation, "'{...}'" if flag.is_json else word)
    return f"{flag.option} {value}".rstrip()


def _group_example(product: str, noun: Noun) -> str:
    words = f"  neo {product} {noun.name}"
    lines = [f"{words} list {_parent_example(noun)}".rstrip()] if "List" in noun.verbs else []
    if "Create" in noun.verbs or not lines:
        lines.append(f"{words} {kebab(noun.verbs[0])} {noun.example}".rstrip())
    title = "Examples" if len(lines) > 1 else "Example"
    return f"{title}:\n\n" + "\n".join(lines)
