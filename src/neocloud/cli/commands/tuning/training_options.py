"""The options of `neo tune` that say how a model is trained."""

from pathlib import Path
from typing import Annotated

import typer

from neocloud.cli.commands.tuning.data_file import Method, grader_text
from neocloud.cli.evaluation.gate import JobGateOption, gate_text, read_gate
from neocloud.cli.output import JsonObject
from neocloud.core.evaluation_gate import JOB_METRICS

SuffixOption = Annotated[str, typer.Option(help="Suffix of the new model's name.")]
EpochsOption = Annotated[int, typer.Option(min=0, help="Passes over the data; 0: chosen by its size.")]
BatchSizeOption = Annotated[int, typer.Option(min=0, help="Rows per step; 0: chosen by the data's size.")]
LearningRateOption = Annotated[
    float, typer.Option(min=0, help="Learning rate; 0: chosen by the model's size.")
]
RankOption = Annotated[int, typer.Option(min=0, help="Rank of the LoRA matrices; 0: 16.")]
ContextLengthOption = Annotated[
    int, typer.Option(min=0, help="Maximum tokens of a row; 0: chosen by the data.")
]
SeedOption = Annotated[
    int, typer.Option(min=0, help="Seed for the order of the data and the initial weights.")
]
RefusePersonalDataOption = Annotated[
    bool,
    typer.Option(
        "--refuse-personal-data",
        help="Fail where e-mail addresses, card numbers, IBANs or telephone numbers are in the data.",
    ),
]
MethodOption = Annotated[
    Method,
    typer.Option(
        help="supervised: from answers; dpo: from preferences; reinforcement: from the scores of a grader."
    ),
]
GraderOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Grader of reinforcement, as JSON of the OpenAI API.")
]
FullOption = Annotated[
    bool, typer.Option("--full", help="Train all weights instead of an adapter; takes much more memory.")
]
BetaOption = Annotated[
    float, typer.Option(min=0, help="dpo, reinforcement: how closely the model is held to its base; 0: auto.")
]
EarlyStoppingOption = Annotated[
    int,
    typer.Option(
        min=0, metavar="N", help="End after N checkpoints without a lower validation loss; 0: never."
    ),
]
MergeOption = Annotated[
    bool, typer.Option("--merge", help="Create a full model instead of an adapter on the base.")
]


def training_spec(
    suffix: SuffixOption = "",
    epochs: EpochsOption = 0,
    batch_size: BatchSizeOption = 0,
    learning_rate: LearningRateOption = 0.0,
    rank: RankOption = 0,
    context_length: ContextLengthOption = 0,
    seed: SeedOption = 42,
    method: MethodOption = Method.SUPERVISED,
    grader: GraderOption = None,
    full: FullOption = False,
    beta: BetaOption = 0.0,
    early_stopping: EarlyStoppingOption = 0,
    merge: MergeOption = False,
    refuse_personal_data: RefusePersonalDataOption = False,
    gate: JobGateOption = None,
) -> JsonObject:
    """Return fields of the spec."""
    settings = {"n_epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    settings |= {"lora_r": rank, "context_length": context_length, "beta": beta}
    settings |= {"early_stopping_patience": early_stopping}
    given: JsonObject = {name: value for name, value in settings.items() if value}
    given |= {"lora": False} if full else {}
    spec: JsonObject = {"suffix": suffix, "seed": seed, "merge": merge, "hyperparameters": given}
    spec |= {"method": method.name} if method is not Method.SUPERVISED else {}
    spec |= {"grader": grader_text(grader)} if grader is not None else {}
    if refuse_personal_data:
        spec["refuse_personal_data"] = True
    if gate is not None:
        read_gate(gate, JOB_METRICS)
        spec["gate"] = gate_text(gate)
    return spec


def is_whole(spec: JsonObject) -> bool:
    """Return whether the new model needs no base to be served with."""
    return bool(spec["merge"] or spec["hyperparameters"].get("lora") is False)
