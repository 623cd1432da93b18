"""`neo tuning`: derived from the contract, with the commands that people use for a job beside them."""

from neocloud.cli.commands.tuning import job
from neocloud.cli.resources.commands import product_app

app = product_app(
    "tuning",
    "Fine-tuning jobs. `neo tune` does the whole way from a file to an answer.",
    "neo tuning job list",
    "neo tuning job show JOB",
    "neo tuning job events JOB --follow",
    "neo tuning job pause JOB",
)
job.add_to(app)
