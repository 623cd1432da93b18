"""`neo tuning`: derived from the contract, plus hand-written commands for jobs."""

from neocloud.cli.commands.tuning import job
from neocloud.cli.resources.commands import product_app

app = product_app(
    "tuning",
    "Fine-tuning jobs. `neo tune` does everything from a data file to a served model.",
    "neo tuning job list",
    "neo tuning job show JOB",
    "neo tuning job events JOB --follow",
    "neo tuning job pause JOB",
)
job.add_to(app)
