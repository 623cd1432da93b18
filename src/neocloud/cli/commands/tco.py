"""`neo tco`: total cost of owning a cluster, and of a conversation on it."""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.evaluation.client import Model
from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, OutputOption, View, print_view, show, table
from neocloud.cli.progress import stage
from neocloud.cli.target import client_of, gateway_of
from neocloud.cli.terminal import echo, one_line
from neocloud.client.errors import ClientError
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.messages.neocloud.billing.v1 import EstimateTcoResponse

SERVICE = "neocloud.billing.v1.TcoService"
_CENT = Decimal("0.01")

app = command_group()


ChangedOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Set a parameter of the plan; see --parameters.", metavar="NAME=VALUE"),
]
TokensPerSecondOption = Annotated[
    list[str] | None, typer.Option(help="Generation speed of a model, e.g. 41.5.", metavar="NUMBER")
]
ScenarioOption = Annotated[
    list[str] | None, typer.Option(help="Generation speed with a name.", metavar="NAME=NUMBER")
]
MeasureOption = Annotated[
    str,
    typer.Option(
        help="Measure this model through the gateway, with one stream and with 16.", metavar="MODEL"
    ),
]
HostedOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Hosted model to compare with: dollars per million input and output tokens.",
        metavar="NAME=IN/OUT",
    ),
]
GatewayOption = Annotated[
    str,
    typer.Option(help="URL of another OpenAI-compatible API, with its key in OPENAI_API_KEY.", metavar="URL"),
]
ParametersOption = Annotated[
    bool, typer.Option("--parameters", help="List the parameters of --set and exit.")
]
GuideOption = Annotated[
    bool, typer.Option("--guide", help="Show the questions to answer before choosing, and exit.")
]


@app.command()
def tco(
    context: typer.Context,
    changed: ChangedOption = None,
    tokens_per_second: TokensPerSecondOption = None,
    scenario: ScenarioOption = None,
    measure: MeasureOption = "",
    hosted: HostedOption = None,
    gateway: GatewayOption = "",
    parameters: ParametersOption = False,
    guide: GuideOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show the total cost of owning a cluster and of a conversation on it: cost per month, cost per
    conversation by speed, and the break-even with hosted models. Prices come from the price list.

    Without options it shows the published plan and its three speeds; notes point out errors in that table.

    Examples:

      neo tco
      neo tco --set workers=4 --set system_nodes_max=3 --measure assistant
      neo tco --tokens-per-second 41.5 --hosted llama-3.1-70b=0.13/0.40 --output json
      neo tco --guide
    """
    if parameters or guide:
        _print_list(context, "ListModelChoices" if guide else "ListParameters", output)
        return
    request: dict[str, list[dict[str, str]]] = {
        "values": [dict(zip(("name", "value"), _pair(text, "--set"), strict=True)) for text in changed or ()],
        "scenarios": list(_scenarios(tokens_per_second or (), scenario or ())),
        "hosted_models": [_hosted(text) for text in hosted or ()],
    }
    if measure:
        with gateway_of(context, gateway) as opened, stage(f"Measuring {measure}"):
            speeds = measured_speeds(Model(opened, measure))
        request["scenarios"] += [
            {"name": f"{measure}, {streams} at a time", "tokens_per_second": f"{speed:.1f}"}
            for streams, speed in speeds
        ]
    with client_of(context) as client:
        answer = client.call(f"{SERVICE}/Estimate", request)
    if output is not Format.TABLE:
        show(output, contract.to_document(answer), View(()))
        return
    for view in (_rows(answer), _serving(answer), _hosted_rows(answer)):
        if view.rows:
            print_view(view)
            echo()
    for note in answer.notes:
        echo(one_line(f"Note{f' ({note.about})' if note.about else ''}: {note.text}"))


def _print_list(context: typer.Context, method: str, output: Format) -> None:
    with client_of(context) as client:
        answer = client.call(f"{SERVICE}/{method}")
    if method == "ListParameters":
        rows = ((each.name, each.default_value, each.about) for each in answer.items)
        view = table(["NAME", "USUAL", "WHAT"], rows)
    else:
        rows = ((each.question, each.small_model, each.large_model, each.advice) for each in answer.items)
        view = table(["QUESTION", "SMALL MODEL", "LARGE MODEL", "ADVICE"], rows)
    show(output, contract.to_document(answer), view)


def _rows(answer: "EstimateTcoResponse") -> View:
    rows = [
        (row.section, row.name, row.what, _range(row.minimum_units, row.maximum_units), row.unit_price,
         _range(f"{int(row.minimum):,}", f"{int(row.maximum):,}"))
        for row in answer.rows
    ]  # fmt: skip
    total = _range(f"{int(answer.minimum):,}", f"{int(answer.maximum):,}")
    rows.append(("Total", "", "", "", "", f"{total} {answer.currency}"))
    headers = ["SECTION", "NAME", "WHAT", "UNITS", "PRICE", "A MONTH"]
    return table(headers, rows, right=["UNITS", "PRICE", "A MONTH"])


def _serving(answer: "EstimateTcoResponse") -> View:
    rows = [
        (row.scenario, row.tokens_per_second, f"{row.tokens_per_day:,}", f"{row.conversations_per_day:,}",
         money(row.cost_per_chat), money(row.cost_per_chat_of_worker))
        for row in answer.serving
    ]  # fmt: skip
    headers = ["SCENARIO", "TOKENS/S", "TOKENS A DAY", "CHATS A DAY", "COST A CHAT", "BY ONE WORKER"]
    return table(headers, rows, right=headers[1:])


def _hosted_rows(answer: "EstimateTcoResponse") -> View:
    rows = [
        (row.model, money(row.cost_per_chat), _number(row.break_even_conversations_per_day),
         row.break_even_tokens_per_second, _number(row.break_even_conversations_per_day_of_worker),
         row.break_even_tokens_per_second_of_worker)
        for row in answer.hosted
    ]  # fmt: skip
    headers = ["HOSTED MODEL", "COST A CHAT", "CHEAPER FROM CHATS A DAY", "AT TOKENS/S"]
    headers += ["ONE WORKER FROM", "AT ITS TOKENS/S"]
    return table(headers, rows, right=headers[1:])


def money(text: str) -> str:
    """Return dollars to the cent; smaller amounts with all their digits."""
    if not text:
        return "none a day"
    amount = Decimal(text)
    return f"${amount.quantize(_CENT)}" if amount >= _CENT else f"${amount.normalize():f}"


def _number(count: int) -> str:
    return f"{count:,}" if count else "never"


def _range(least: object, most: object) -> str:
    return f"{least}" if least == most else f"{least} - {most}"


def _scenarios(plain: Sequence[str], named: Sequence[str]) -> Iterator[dict[str, str]]:
    for speed in plain:
        yield {"name": f"{speed} tokens/s", "tokens_per_second": speed}
    for text in named:
        name, speed = _pair(text, "--scenario")
        yield {"name": name, "tokens_per_second": speed}


def _hosted(text: str) -> dict[str, str]:
    name, prices = _pair(text, "--hosted")
    read, slash, written = prices.partition("/")
    if not slash:
        raise ClientError(
            "INVALID_ARGUMENT", f"{text!r} has one price", "Write NAME=IN/OUT, e.g. llama=0.13/0.40"
        )
    return {"name": name, "input_price": read, "output_price": written}


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ClientError(
            "INVALID_ARGUMENT", f"{option} {text!r} is not NAME=VALUE", f"Write {option} NAME=VALUE"
        )
    return name, value


STREAMS: Sequence[int] = (1, 16)
QUESTIONS = (
    "How do I open an account?",
    "What does a transfer abroad cost?",
    "I lost my card.",
    "Who are you?",
)


def measured_speeds(model: Model) -> Sequence[tuple[int, float]]:
    """Return the number of streams and their total tokens per second.

    A first answer is not counted, because model servers compile on it.
    """
    model.answer(_question(0), 8)
    found: list[tuple[int, float]] = []
    for streams in STREAMS:
        questions = [_question(number) for number in range(streams)]
        found.append((streams, model.tokens_per_second(questions)))
    return found


def _question(number: int) -> list[dict[str, str]]:
    text = QUESTIONS[number % len(QUESTIONS)]
    return [{"role": "user", "content": f"{text} ({number + 1})"}]
