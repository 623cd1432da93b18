"""Products whose commands are derived from the contract, with the commands and functions written for them.

Each function imports what belongs to one product, when that product is used.
"""

from collections.abc import Callable, Mapping

import typer

from neocloud.cli.resources.commands import product_app
from neocloud.cli.resources.noun import Hooks, NounHooks


def app_of(product: str) -> typer.Typer:
    """Return the commands of a product."""
    app = product_app(product, hooks_of(product))
    if product == "tuning":
        from neocloud.cli.commands.tuning import file  # noqa: PLC0415  for its product alone

        app.add_typer(file.app, name="file")
    if product == "inference":
        from neocloud.cli.commands.inference import feedback  # noqa: PLC0415  for its product alone

        app.add_typer(feedback.app, name="feedback")
    return app


def hooks_of(product: str) -> Hooks:
    """Return what is written for the nouns of a product."""
    return _HOOKS[product]() if product in _HOOKS else {}


def _ai() -> Hooks:
    from neocloud.cli.commands import ai_workloads  # noqa: PLC0415  for its product alone

    defaults = ai_workloads.fill_defaults
    return {noun: NounHooks(commands, defaults=defaults) for noun, commands in ai_workloads.OVERRIDES.items()}


def _compute() -> Hooks:
    from neocloud.cli.commands import instance  # noqa: PLC0415  for its product alone

    return {noun: NounHooks(commands) for noun, commands in instance.OVERRIDES.items()}


def _inference() -> Hooks:
    from neocloud.cli.commands.inference.price import warn_of_unpriced  # noqa: PLC0415  for its product alone

    return {"budget": NounHooks(after_create=warn_of_unpriced)}


def _tuning() -> Hooks:
    from neocloud.cli.commands.tuning import job  # noqa: PLC0415  for its product alone

    return {noun: NounHooks(commands) for noun, commands in job.OVERRIDES.items()}


_HOOKS: Mapping[str, Callable[[], Hooks]] = {
    "ai": _ai,
    "compute": _compute,
    "inference": _inference,
    "tuning": _tuning,
}
