"""Where the recipes lie: inside an installed package, or beside `src` in a checkout."""

from functools import cache
from pathlib import Path

import neocloud
from neocloud.core.reconcile.reconciler import Failed

_PACKAGE = Path(neocloud.__file__).parent


@cache
def code_folder() -> Path:
    for candidate in (_PACKAGE / "recipes", _PACKAGE.parents[1] / "recipes"):
        if (candidate / "tuning_job.py").is_file():
            return candidate
    raise Failed(
        "RecipesMissing",
        f"No recipes in {_PACKAGE} or beside it. Install the package again, or run from a checkout.",
    )
