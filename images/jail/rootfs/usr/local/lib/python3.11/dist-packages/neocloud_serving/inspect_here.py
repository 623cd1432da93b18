"""Make vLLM inspect a model's class in its own process on a CPU.

vLLM starts another Python for it, which imports torch and all of vLLM again, so that CUDA is not
initialised in the process that starts the engine. On a CPU there is no CUDA to initialise, and each start
waited for that import.
"""

from vllm.model_executor.models import registry
from vllm.platforms import current_platform


def install() -> None:
    if current_platform.is_cpu():
        registry._run_in_subprocess = lambda inspect: inspect()
