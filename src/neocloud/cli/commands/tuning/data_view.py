"""The report of a data set as people read it, for `neo tune --dry-run`.

On a terminal, what the model learns is coloured. Elsewhere, and with NO_COLOR, marks stand around it.
"""

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from neocloud.cli.commands.tuning.data_report import TrialReport, files_of
from neocloud.cli.output import JsonObject, console, counted, fields_table, print_view, say, table, warn
from neocloud.cli.progress import duration
from neocloud.cli.terminal import echo, one_line, visible

KINDS = {
    "email": "e-mail addresses",
    "card": "card numbers",
    "iban": "IBANs",
    "phone": "telephone numbers",
}
STYLES = {"learnt": "bold green", "cut": "red strike"}
OF_METHODS = {
    "beta": "Beta",
    "num_generations": "Answers to each prompt",
    "max_completion_tokens": "Most tokens of one",
    "temperature": "Temperature",
    "early_stopping_patience": "Early stopping, checkpoints",
}
"""Hyperparameters that some methods have, with their words."""
MARKS = {"learnt": ("{+", "+}"), "cut": ("[-", "-]"), "context": ("", "")}
"""The marks of `wdiff` for what is added and what is removed."""


def show_data(data: JsonObject) -> None:
    """Print what is understood of the files."""
    if data["state"] != "done":
        say(f"What is in the data: not_run: {data['reason']}")
        return
    for title, found in zip(("Training data", "Evaluation data"), files_of(data), strict=False):
        _show_file(title, found)
    if not data["validation"]:
        echo("Evaluation data: a tenth of the training data is held out.\n")
        return
    for line in data["overlap"]["lines"]:
        warn(f"evaluation data: {line}")


def _show_file(title: str, found: JsonObject) -> None:
    kind = f" ({found['format']})" if found["format"] else ""
    roles = ", ".join(f"{number:,} {role}" for role, number in found["roles"].items())
    rows: list[tuple[str, object]] = [
        ("Rows", f"{found['rows']:,}"),
        ("Conversations", f"{found['conversations']:,}"),
        ("Messages", roles),
    ]
    if found["conversations_with_tools"]:
        with_tools = counted(found["conversations_with_tools"], "conversation")
        rows.append(("Tools", f"in {with_tools}, {counted(found['tool_calls'], 'call')}"))
    if found["copies"]:
        rows.append(("Copies of others", f"{found['copies']:,}"))
    echo(f"{title}: {one_line(found['file'])}{kind}")
    print_view(fields_table(rows))
    echo()
    if found["columns"]:
        print_view(table(["Column", "Used for"], [(each["name"], each["use"]) for each in found["columns"]]))
        echo()
    if found["groups"]:
        print_view(
            table(["Left out", "Rows", "Where"], [_group(each) for each in found["groups"]], right=["Rows"])
        )
        echo()
    if found["personal_data"]:
        print_view(table(["Personal data", "Values", "Conversations", "First in"], _personal(found)))
        echo()
    for text in found["notes"]:
        say(f"{found['file']}: {text}")


def _group(group: JsonObject) -> tuple[str, str, str]:
    more = ", ..." if group["count"] > len(group["places"]) else ""
    kind = "error: " if group["is_error"] else ""
    return f"{kind}{group['reason'][:300]}", f"{group['count']:,}", ", ".join(group["places"]) + more


def _personal(found: JsonObject) -> Iterator[tuple[str, str, str, str]]:
    for kind, name in KINDS.items():
        if each := found["personal_data"].get(kind):
            yield name, f"{each['values']:,}", f"{each['conversations']:,}", ", ".join(each["places"])


def show_tokens(tokens: JsonObject) -> None:
    if tokens["state"] != "done":
        (warn if tokens["state"] == "failed" else say)(f"Tokens: {tokens['state']}: {tokens['reason']}")
        return
    about = "about " if tokens["is_estimated"] else ""
    share = f"{tokens['learnt'] / tokens['tokens']:.0%}" if tokens["tokens"] else "none"
    rows: list[tuple[str, object]] = [
        ("Tokens", f"{about}{tokens['tokens']:,}"),
        ("Learnt", f"{about}{tokens['learnt']:,} ({share})"),
        ("Longest", f"{tokens['longest']:,} tokens, {tokens['longest_place']}"),
        ("Context", f"{tokens['context']:,} tokens" if tokens["context"] else ""),
        ("Truncated", _truncated(tokens)),
        ("Without an answer then", f"{tokens['without_answer']:,}" if tokens["without_answer"] else ""),
        ("Counted by", tokens["library"]),
    ]
    if tokens["is_estimated"]:
        rows.append(("Tokenised", f"{tokens['tokenised']:,} of {tokens['conversations']:,} conversations"))
    print_view(fields_table([row for row in rows if row[1]]))
    _show_examples(tokens["examples"])


def _truncated(tokens: JsonObject) -> str:
    if not tokens["truncated"]:
        return "none"
    return f"{counted(tokens['truncated'], 'conversation')}, first: {', '.join(tokens['truncated_places'])}"


def _show_examples(examples: list[JsonObject]) -> None:
    screen = console()
    is_coloured = screen.is_terminal and not screen.no_color
    learnt, cut = (_span(name, name, is_coloured) for name in ("learnt", "cut"))
    legend = Text.assemble("As the model reads them (", learnt, ", ", cut, "; personal data masked):")
    _print(screen, Text("\n").append_text(legend))
    for each in examples:
        _print(screen, Text(f"\n--- {each['place']}", style="dim"))
        text = Text.assemble(*(_span(span["text"], span["kind"], is_coloured) for span in each["spans"]))
        if each["left_out_characters"]:
            text.append(f" ... {each['left_out_characters']:,} more characters", style="dim")
        _print(screen, text)
    echo()


def _span(text: str, kind: str, is_coloured: bool) -> Text:
    if is_coloured:
        return Text(visible(text), style=STYLES.get(kind, ""))
    before, after = MARKS[kind]
    return Text(f"{before}{text}{after}")


def _print(screen: Console, text: Text) -> None:
    if screen.is_terminal:
        screen.print(text, soft_wrap=True)
    else:
        echo(text.plain)


def show_estimate(estimate: JsonObject) -> None:
    if estimate["state"] != "done":
        say(f"Estimate: not_run: {estimate['reason']}")
        return
    used = estimate["hyperparameters"]
    about = "" if estimate["are_tokens_counted"] else "about "
    rows: list[tuple[str, object]] = [
        ("Passes", used["n_epochs"]),
        ("Rows per step", used["batch_size"]),
        ("Context", f"{int(used['context_length']):,} tokens"),
        ("Learning rate", f"{used['learning_rate']:g}"),
        ("Trained", "an adapter (LoRA)" if used.get("lora", True) else "all weights"),
        *((words, f"{used[name]:g}") for name, words in OF_METHODS.items() if used.get(name)),
        *((("Memory", estimate["memory"]),) if estimate.get("memory") else ()),
        ("Tokens to train on", f"{about}{estimate['trained_tokens']:,}"),
        ("Duration", _duration(estimate)),
        ("Cost", _cost(estimate)),
    ]
    print_view(fields_table(rows))
    for text in estimate.get("warnings", ()):
        warn(text)
    echo()


def _duration(estimate: JsonObject) -> str:
    if estimate["seconds"] is None:
        return "unknown: no job of this project has trained this model on this shape"
    speed, job = estimate["tokens_per_second"], estimate["measured_job_id"]
    return f"about {duration(int(estimate['seconds']))}, at {speed:,.0f} tokens a second as job {job}"


def _cost(estimate: JsonObject) -> str:
    if estimate["seconds"] is None:
        return "unknown, as the duration"
    if estimate["cost"] is None:
        return "no price"
    return f"about {estimate['cost']} {estimate['currency']}"


def show_report(report: TrialReport) -> None:
    """Print tokens, examples and the estimate, after the data."""
    show_tokens(report.tokens)
    show_estimate(report.estimate)
