"""Bodies of the derived commands: build a request, call, wait, print."""

import re
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from neocloud.cli.output import Format, JsonObject, confirm, fields_table, say, show
from neocloud.cli.progress import finish
from neocloud.cli.resources.deletion import delete_by_force, id_to_delete
from neocloud.cli.resources.flags import Flag, fill, paths_in, read_manifest
from neocloud.cli.resources.kept_resources import refuse_name_of_deleted, say_until_when_kept
from neocloud.cli.resources.lookup import PROJECTS, ProjectClient, closest_names, id_of, tenant_id_of
from neocloud.cli.resources.names import names_by_id, resolve_names, with_field_names
from neocloud.cli.resources.noun import Noun, Parent
from neocloud.cli.resources.pages import page
from neocloud.cli.resources.prices import show_trial
from neocloud.cli.resources.rows import list_table, text_at
from neocloud.cli.target import profile_of, project_of
from neocloud.cli.terminal import echo
from neocloud.client.connection import Client, connect, items_field
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile
from neocloud.core import contract
from neocloud.core.json_values import as_object

if TYPE_CHECKING:
    from neocloud.messages.nebius.common.v1 import Operation

Given = Mapping[str, Any]
_BODY = "The body is not a JSON object of "
"""How the contract refuses a request that is not a message; a user who gave options has sent no body."""
WRITABLE_METADATA = ("name", "parent_id", "labels")


def create(flags: list[Flag]) -> Callable[[Noun, str, Given], None]:
    def run(noun: Noun, verb: str, given: Given) -> None:
        profile, client = _open(given)
        request = _from_manifest(given["file"], noun.rpc(verb).input.DESCRIPTOR)
        metadata = request.setdefault("metadata", {})
        named = given.get("parent_id") or str(metadata.get("parent_id") or "")
        metadata["parent_id"] = _parent(noun, client, profile, {"parent_id": named})
        metadata["name"] = _new_name(given) or metadata.get("name", "")
        _add_labels(metadata, given["label"])
        if "spec" in noun.rpc(verb).input.DESCRIPTOR.fields_by_name:
            request.setdefault("spec", {})
        fill(request, flags, given)
        cloud = ProjectClient(client, profile, metadata["parent_id"])
        if noun.hooks.defaults:
            noun.hooks.defaults(cloud, request)
        _resolve(noun, verb, request, cloud)
        if given["dry_run"]:
            with _naming_flags(noun, verb, flags):
                show_trial(client, noun.rpc(verb).path, request, given["output"])
            return
        try:
            operation = _call(client, noun, verb, request, flags)
        except ClientError as error:
            if error.code == "ALREADY_EXISTS":
                refuse_name_of_deleted(noun, client, metadata["parent_id"], str(metadata["name"]))
            raise
        _finish(noun, client, operation, given, "created")
        if noun.hooks.after_create:
            noun.hooks.after_create(cloud)

    return run


def issue(flags: list[Flag]) -> Callable[[Noun, str, Given], None]:
    """Create a resource whose method answers with a token."""

    def run(noun: Noun, verb: str, given: Given) -> None:
        profile, client = _open(given)
        parent_id = _parent(noun, client, profile, given)
        metadata: JsonObject = {"parent_id": parent_id, "name": _new_name(given)}
        _add_labels(metadata, given["label"])
        request: JsonObject = {"metadata": metadata, "spec": {}}
        fill(request, flags, given)
        _resolve(noun, verb, request, ProjectClient(client, profile, parent_id))
        answer = client.call(noun.rpc(verb).path, request)
        say("Store the token now: it is not shown again.")
        document = {"id": answer.operation.resource_id, "token": answer.token}
        if given["output"] is Format.TABLE:  # not as a table, which would break the token at the edge
            echo(f"Id      {document['id']}\nToken   {document['token']}")
            return
        show(given["output"], document, fields_table(()))

    return run


def update(flags: list[Flag]) -> Callable[[Noun, str, Given], None]:
    def run(noun: Noun, verb: str, given: Given) -> None:
        profile, client = _open(given)
        request = _from_manifest(given["file"], noun.rpc(verb).input.DESCRIPTOR)
        metadata = request.setdefault("metadata", {})
        metadata.pop("parent_id", None)
        named = [path for path in paths_in(request) if path.startswith(("spec.", "metadata.labels"))]
        metadata["id"], parent_id = _target(noun, client, profile, given)
        if given["name"]:
            metadata["name"] = given["name"]
        named += ["metadata.labels"] if _add_labels(metadata, given["label"]) else []
        named += fill(request, flags, given)
        _resolve(noun, verb, request, ProjectClient(client, profile, parent_id))
        operation = _call(client, noun, verb, request, flags, named)
        _finish(noun, client, operation, given, "changed")

    return run


def get(noun: Noun, verb: str, given: Given) -> None:
    profile, client = _open(given)
    _print_one(client, _find(noun, client, profile, given), given["output"])


def delete(noun: Noun, verb: str, given: Given) -> None:
    if given["force"] and given["no_wait"]:
        raise ClientError(
            "INVALID_ARGUMENT", "--force waits for the deletion first", "Leave out --no-wait or --force"
        )
    profile, client = _open(given)
    resource_id = id_to_delete(
        lambda: _target(noun, client, profile, given, is_exact=True)[0], given["target"], force=given["force"]
    )
    what = f"{noun.words} {given['target']}"
    held = _contents(noun, client, resource_id)
    confirm(f"{what}, which holds {held}" if held else what, yes=given["yes"])
    if given["force"]:
        delete_by_force(client, noun.rpc(verb).path, resource_id, what, yes=given["yes"])
        return
    operation = client.call(noun.rpc(verb).path, {"id": resource_id})
    if not given["no_wait"]:
        _wait(client, operation, f"Delete {what}")
    echo(f"{noun.words.capitalize()} {given['target']} is {'being ' if given['no_wait'] else ''}deleted.")
    if held:
        say(f"It held {held}.")
    say_until_when_kept(noun, client, resource_id, given["target"])


def _contents(noun: Noun, client: Client, resource_id: str) -> str:
    """Return what the resource holds; "" for nothing, for kinds that hold nothing, and for hidden ones."""
    if not noun.hooks.contents:
        return ""
    try:
        return noun.hooks.contents(client.call(noun.rpc("Get").path, {"id": resource_id}))
    except ClientError as error:
        if error.code not in ("NOT_FOUND", "PERMISSION_DENIED"):
            raise
        return ""


def call(flags: list[Flag]) -> Callable[[Noun, str, Given], None]:
    """Run a list or another verb: send the request, print the answer."""

    def run(noun: Noun, verb: str, given: Given) -> None:
        profile, client = _open(given)
        rpc = noun.rpc(verb)
        request: JsonObject = {}
        parent_id = ""
        if "target" in given:
            request["id"], parent_id = _target(noun, client, profile, given)
        elif "parent_id" in given and "parent_id" in rpc.input.DESCRIPTOR.fields_by_name:
            parent_id = request["parent_id"] = _parent(noun, client, profile, given)
        elif given.get("parent_id"):
            parent_id = _parent(noun, client, profile, given)  # only names are resolved in it
        fill(request, flags, given)
        _resolve(noun, verb, request, ProjectClient(client, profile, parent_id))
        if verb.startswith("List"):
            with _naming_flags(noun, verb, flags):
                items = list(client.list_all(rpc.path, request))
            _print_list(noun, rpc.output.DESCRIPTOR, items, given["output"])
            return
        answer = _call(client, noun, verb, request, flags)
        if answer.DESCRIPTOR.full_name == "nebius.common.v1.Operation":
            _wait(client, answer, f"{verb} {noun.words}")
            say("Done.")
        else:
            _print_answer(client, answer, given["output"])

    return run


def _resolve(noun: Noun, verb: str, request: JsonObject, at: ProjectClient) -> None:
    """Replace names in a request by ids. `at.project` is the parent of the resource, "" if unknown."""
    project = at.project if noun.parent is Parent.PROJECT else ""
    cloud = ProjectClient(at.client, at.profile, project or at.profile.project_id)
    resolve_names(request, noun.rpc(verb).input.DESCRIPTOR, cloud)


def _call(
    client: Client,
    noun: Noun,
    verb: str,
    request: JsonObject,
    flags: list[Flag],
    reset_mask: Sequence[str] = (),
) -> Any:
    with _naming_flags(noun, verb, flags):
        return client.call(noun.rpc(verb).path, request, reset_mask=reset_mask)


@contextmanager
def _naming_flags(noun: Noun, verb: str, flags: list[Flag]) -> Generator[None]:
    """Name the flags in a refusal of fields that all have flags; of a oneof, each flag."""
    try:
        yield
    except ClientError as error:
        by_path = {".".join(flag.path): flag for flag in flags}
        shortcuts = dict(noun.shortcuts)
        groups = dict(_groups(noun.rpc(verb).input.DESCRIPTOR, by_path))
        if error.message.startswith(_BODY):
            why = error.message.removeprefix(_BODY).partition(": ")[2]
            raise ClientError(error.code, f"An option has a value of another form: {why}") from error
        words: list[str] = []
        for field, why in error.violations:
            path = next((each for each in by_path if re.match(rf"{re.escape(each)}(\[|\.|$)", field)), "")
            if field in groups:
                words.append(f"one of {groups[field]} is required")
            elif path:
                words.append(_violation(by_path[path], shortcuts.get(path, by_path[path].option), why))
            else:
                raise
        if not words:
            raise
        raise ClientError(error.code, "; ".join(words)) from error


def _groups(descriptor: Descriptor, flags: Mapping[str, Flag]) -> Iterator[tuple[str, str]]:
    """Yield the path of each oneof, as the contract names it, with its flags."""
    for start in {path.rpartition(".")[0] for path in flags}:
        inside: Any = descriptor
        for name in filter(None, start.split(".")):
            inside = inside.fields_by_name[name].message_type
        for group in inside.oneofs:
            paths = [f"{start}.{field.name}".lstrip(".") for field in group.fields]
            if known := [flags[path].option for path in paths if path in flags]:
                yield f"{start}.{group.name}".lstrip("."), ", ".join(known)


def _violation(flag: Flag, name: str, why: str) -> str:
    if "value is required" not in why:
        return f"{name} {why}"
    choices = ", ".join(flag.choices)
    return f"{name} is required{f': {choices}' if choices else ''}"


def _open(given: Given) -> tuple[Profile, Client]:
    profile = profile_of(given["context"])
    client = connect(profile)
    given["context"].call_on_close(client.close)
    return profile, client


def _from_manifest(file: Path | None, descriptor: Descriptor) -> JsonObject:
    """Return the fields of a manifest that a request may set, without output-only fields."""
    if file is None:
        return {}
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ClientError("INVALID_ARGUMENT", f"{file} cannot be read: {error}", "Check its path") from error
    document = with_field_names(read_manifest(text, str(file)), descriptor)
    metadata = as_object(document.get("metadata"))
    return {
        "metadata": {key: metadata[key] for key in WRITABLE_METADATA if key in metadata},
        "spec": document.get("spec") or {},
    }


def _new_name(given: Given) -> str:
    name, option = given["name"], given["name_option"]
    if name and option and name != option:
        raise ClientError("INVALID_ARGUMENT", f"Two names were given: {name!r} and {option!r}", "Give one")
    return name or option


def _add_labels(metadata: JsonObject, labels: list[str] | None) -> bool:
    for item in labels or ():
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise ClientError(
                "INVALID_ARGUMENT", f"{item!r} is not NAME=VALUE", "For example --label team=risk"
            )
        metadata.setdefault("labels", {})[key] = value
    return bool(labels)


def _parent(noun: Noun, client: Client, profile: Profile, given: Given) -> str:
    """Return the id of the parent: the given one, by id or name, or else the profile's."""
    named: str = given.get("parent_id") or ""
    if named:
        service = noun.parent_service or (PROJECTS if noun.parent is Parent.PROJECT else "")
        if service:
            return id_of(ProjectClient(client, profile, profile.project_id), service, named)
        return tenant_id_of(client, profile, named) if noun.parent is Parent.TENANT else named
    if noun.parent is Parent.TENANT:
        if profile.tenant_id:
            return profile.tenant_id
        raise ClientError(
            "INVALID_ARGUMENT", f"Profile {profile.name!r} has no tenant", "Give its id with --parent-id"
        )
    return project_of(profile)


def _find(noun: Noun, client: Client, profile: Profile, given: Given, *, is_exact: bool = False) -> Any:
    """Return the named resource. `is_exact`: other names, such as that of a job's model, are not accepted."""
    target = given["target"]
    if "GetByName" not in noun.verbs:
        return client.call(noun.rpc("Get").path, {"id": target})
    if "Get" in noun.verbs and contract.is_id(target):
        try:
            return client.call(noun.rpc("Get").path, {"id": target})
        except ClientError as error:
            if error.code != "NOT_FOUND":
                raise  # otherwise it is a name that looks like an id, such as `before-upgrade`
    parent = _parent(noun, client, profile, given)
    try:
        return client.call(noun.rpc("GetByName").path, {"parent_id": parent, "name": target})
    except ClientError as error:
        if error.code != "NOT_FOUND":
            raise
        listed = list(client.list_all(noun.rpc("List").path, {"parent_id": parent}))
        path, _ = noun.also_known_as
        if path and not is_exact and (known_as := [item for item in listed if text_at(item, path) == target]):
            return known_as[-1]  # the newest: lists begin with the oldest
        known = [item.metadata.name or item.metadata.id for item in listed]
        step = closest_names(target, known) or "There is none yet"
        raise ClientError("NOT_FOUND", f"There is no {noun.words} {target!r}", step) from error


def _target(
    noun: Noun, client: Client, profile: Profile, given: Given, *, is_exact: bool = False
) -> tuple[str, str]:
    """Return the ids of the named resource and of its parent, which is "" where only the id is known."""
    if "GetByName" not in noun.verbs:
        return given["target"], ""
    metadata = _find(noun, client, profile, given, is_exact=is_exact).metadata
    return metadata.id, metadata.parent_id


def _finish(noun: Noun, client: Client, operation: "Operation", given: Given, what: str) -> None:
    """Wait unless --no-wait was given, then print the resource."""
    if given["no_wait"]:
        _print_one(client, operation, given["output"])
        return
    _wait(client, operation, f"{noun.words.capitalize()} is being {what}")
    say(f"{noun.words.capitalize()} {operation.resource_id} is {what}.")
    _print_one(client, client.call(noun.rpc("Get").path, {"id": operation.resource_id}), given["output"])


def _wait(client: Client, operation: "Operation", title: str) -> None:
    if operation.HasField("status"):
        client.wait(operation)
        return
    finish(client, operation, title)


def _print_answer(client: Client, answer: Any, output: Format) -> None:
    """Print a page, or what is a log or a list by itself."""
    fields = [field.name for field in answer.DESCRIPTOR.fields]
    if output is Format.TABLE and fields[:1] == ["text"]:
        echo(answer.text.rstrip("\n"))
    elif output is Format.TABLE and fields[:1] == ["lines"]:
        for line in answer.lines:
            echo(line)
    else:
        _print_one(client, answer, output)


def _print_one(client: Client, answer: Message, output: Format) -> None:
    view = page(answer, names_by_id(client, answer)) if output is Format.TABLE else fields_table(())
    show(output, contract.to_document(answer), view, empty="The answer is empty.")


def _print_list(noun: Noun, response: Descriptor, items: list[Message], output: Format) -> None:
    item_type = response.fields_by_name[items_field(response)].message_type
    assert item_type is not None, "items are messages"
    view = list_table(item_type, items, noun.columns)
    show(output, [contract.to_document(item) for item in items], view, empty=f"There is no {noun.words}.")
