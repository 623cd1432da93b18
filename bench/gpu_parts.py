#!/usr/bin/env python3
"""The parts of scripts/on-a-gpu: each measures one thing and prints its figures as one line of JSON.

    python bench/gpu_parts.py lora --device cpu --shape tiny --context 128 --steps 10

PYTHONPATH must have src, bench and recipes; scripts/on-a-gpu sets it. A part whose needs turn out to be
missing says `not_run` with the reason.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "peft", "accelerate", "bitsandbytes", "vllm", "pyarrow")
GPU_CHECKS = ("gpu_gemm", "gpu_memory_bandwidth", "gpu_pcie_h2d", "gpu_pcie_d2h", "gpu_sdc", "gpu_repeat")
CPU_CHECKS = ("cpu_sdc", "memory_bandwidth")
CHECK_SECONDS = 120
AT_ONCE = (1, 16)
PROMPT_TOKENS = 64
FIRST_RANK = 16
KIND_OF_SHAPE = {"tiny": "tiny", "0.6b": "qwen3-0.6b-shaped", "8b": "qwen3-8b-shaped"}

Figures = dict[str, Any]


def machine(given: argparse.Namespace) -> Figures:
    """Return what is installed, and what the GPU is."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES if importlib.util.find_spec(name)}
    found: Figures = {
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)),
        "packages": versions,
    }
    found |= {name: version for name, version in versions.items()}
    if given.device == "cuda":
        found |= _nvidia_smi()
        if "torch" in versions:
            torch = importlib.import_module("torch")
            found["torch_sees_gpu"] = torch.cuda.is_available()
            found["cuda_of_torch"] = str(torch.version.cuda)
    return found


def _nvidia_smi() -> Figures:
    names = ("name", "driver_version", "memory.total", "power.limit", "clocks.max.sm", "ecc.mode.current")
    command = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    values = done.stdout.strip().splitlines()[:1]
    return dict(zip(names, [each.strip() for each in values[0].split(",")], strict=False)) if values else {}


def checks(given: argparse.Namespace) -> Figures:
    """Return what the checks of a node measured, and which failed."""
    _require_device(given)
    wanted = GPU_CHECKS if given.device == "cuda" else CPU_CHECKS
    options = [word for name in wanted for word in ("--check", name)]
    command = [
        sys.executable,
        "-m",
        "neocloud.fleet.active",
        "run",
        *options,
        "--most-seconds",
        str(CHECK_SECONDS),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the checks ended with exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    report = json.loads(done.stdout)
    judged = report["document"]["verdicts"]
    found: Figures = {f"{each['check']} {each['unit']}": each["value"] for each in report["measured"]}
    found["verdicts"] = {each["check"]: each["status"] for each in judged}
    found["not_run"] = {each["check"]: each["why"] for each in report["document"]["not_run"]}
    found["failed"] = ", ".join(each["check"] for each in judged if each["status"] == "fail") or "none"
    return found


def lora(given: argparse.Namespace) -> Figures:
    """Return the speed of fine-tuning, and its memory against the estimate."""
    _require_device(given)
    from finetune_gpu import SHAPES, make_model, prepare, speed  # noqa: PLC0415  other parts need none of it

    shape = SHAPES[given.shape]
    with tempfile.TemporaryDirectory(prefix="on-a-gpu-") as name:
        folder = Path(name)
        tokenizer, data = prepare(folder, given.context)
        make_model(shape, given.context, tokenizer, folder / "model")
        peak = folder / "peak.json"
        more = {"load_in_4bit": "true"} if given.bits == 4 else {}
        more["mixed_precision"] = "bf16"
        tokens = speed(shape, folder / "model", data, folder / "run", given.steps, more, _with_peak(peak))
        used = json.loads(peak.read_text())
        config = json.loads((folder / "model" / "config.json").read_text())
    found: Figures = {
        "tokens_per_second": tokens,
        "tflops": tokens * shape.operations(given.context) / 1e12,
        "context": given.context,
        "rows": shape.rows,
        "peak_gib": used["bytes"] / 2**30,
        "peak_of": used["of"],
    }
    return found | _estimate(config, shape.rows * given.context, used["bytes"], given)


def _with_peak(target: Path) -> Sequence[str]:
    """Return the start of a command that runs a script and writes the most memory that it took."""
    return [sys.executable, str(Path(__file__).resolve()), "peak", "--output", str(target)]


def peak(given: argparse.Namespace) -> None:
    """Run a recipe in this process, and write the most memory that it took."""
    script, *arguments = given.rest
    sys.path.insert(0, str(Path(script).parent))
    code = importlib.import_module(Path(script).stem).main(arguments)
    torch = importlib.import_module("torch")
    if torch.cuda.is_available():
        used, of = torch.cuda.max_memory_reserved(), "torch's GPU memory"
    else:
        used, of = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "the process"
    given.output.write_text(json.dumps({"bytes": used, "of": of}))
    sys.exit(code)


def _estimate(config: Figures, tokens: int, used: int, given: argparse.Namespace) -> Figures:
    """Return the control plane's estimate for this training, against what it took."""
    if given.bits == 4:
        return {"estimate": "not_run: the control plane estimates weights of 16 bits"}
    try:
        from neocloud.services.compute.public import Preset  # noqa: PLC0415  needs the packages of the server
        from neocloud.services.inference.rules.memory import read_architecture  # noqa: PLC0415
        from neocloud.services.tuning.rules.memory import Training, fit  # noqa: PLC0415
    except ImportError as error:
        return {"estimate": f"not_run: {error}"}
    known = read_architecture(config)
    gpus = 1 if given.device == "cuda" else 0
    training = Training(
        parameters=given.parameters or _parameters(given.shape),
        kv_bytes_per_token=known.kv_bytes_per_token,
        rank=FIRST_RANK,
        adapter_bytes_per_rank=known.adapter_bytes_per_rank,
        tokens_at_a_time=tokens,
    )
    shape = Preset("any", "any", vcpu=1, memory_gib=1, gpus=gpus, gpu_memory_gib=1)
    needed = fit(training, shape).needed_bytes
    return {"estimate_gib": needed / 2**30, "estimate_to_truth": needed / used}


def _parameters(name: str) -> int:
    from finetune_gpu import SHAPES  # noqa: PLC0415

    shape = SHAPES[name]
    return shape.matrix_weights + (0 if shape.is_tied else shape.hidden * shape.vocabulary)


def serve(given: argparse.Namespace) -> Figures:
    """Return the speeds of base and adapter in one engine, one request and 16 at a time."""
    _require_device(given)
    if given.device == "cpu":
        os.environ |= {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "TORCHDYNAMO_DISABLE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from finetune_gpu import prepare  # noqa: PLC0415
    from served.models import LORA, make  # noqa: PLC0415

    vllm = importlib.import_module("vllm")
    request = importlib.import_module("vllm.lora.request").LoRARequest
    with tempfile.TemporaryDirectory(prefix="on-a-gpu-") as name:
        folder = Path(name)
        tokenizer, _ = prepare(folder, 256)
        weights = make(KIND_OF_SHAPE[given.shape], tokenizer, folder / "made")
        longest = PROMPT_TOKENS + given.tokens + 1
        engine = vllm.LLM(
            str(weights.base), enable_lora=True, max_loras=1, max_lora_rank=LORA["r"], seed=0,
            max_num_seqs=max(AT_ONCE), max_model_len=longest, enforce_eager=given.device == "cpu",
            **({"gpu_memory_utilization": 0.6} if given.device == "cuda" else {}),
        )  # fmt: skip
        adapter = request("tuned", 1, str(weights.adapter))
        sampling = vllm.SamplingParams(max_tokens=given.tokens, ignore_eos=True, temperature=0)

        def rate(count: int, with_adapter: bool) -> float:
            prompts = [_prompt(weights.vocabulary, number) for number in range(count)]
            started = time.monotonic()
            engine.generate(prompts, sampling, use_tqdm=False, lora_request=adapter if with_adapter else None)
            return count * given.tokens / (time.monotonic() - started)

        return _compared(rate, given.rounds) | {"vllm": vllm.__version__, "parameters": weights.parameters}


def _prompt(vocabulary: int, number: int) -> Figures:
    generator = random.Random(number)
    return {"prompt_token_ids": [generator.randrange(10, vocabulary - 10) for _ in range(PROMPT_TOKENS)]}


def _compared(rate: Callable[[int, bool], float], rounds: int) -> Figures:
    """Return medians of alternating rounds, after one that warms up."""
    found: Figures = {}
    for count in AT_ONCE:
        speeds: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(rounds + 1):
            for with_adapter, measured in speeds.items():
                measured += [rate(count, with_adapter)][: 1 if turn else 0]
        base, adapted = (statistics.median(speeds[each]) for each in (False, True))
        found |= {f"base_{count}": base, f"adapter_{count}": adapted, f"ratio_{count}": adapted / base}
    return found


def _require_device(given: argparse.Namespace) -> None:
    """End the part where torch does not see the GPU that nvidia-smi lists."""
    torch = importlib.import_module("torch")
    if given.device == "cuda" and not torch.cuda.is_available():
        report({"state": "not_run", "reason": f"torch {torch.__version__} sees no GPU"})
        sys.exit(0)


def report(found: Figures) -> None:
    print(f"RESULT {json.dumps(found)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for part in (machine, checks, lora, serve):
        command = commands.add_parser(part.__name__)
        command.set_defaults(part=part, parameters=0)
        command.add_argument("--device", choices=("cuda", "cpu"), required=True)
        command.add_argument("--shape", choices=tuple(KIND_OF_SHAPE), default="0.6b")
        command.add_argument("--bits", type=int, choices=(4, 16), default=16)
        command.add_argument("--context", type=int, default=2048)
        command.add_argument("--steps", type=int, default=20)
        command.add_argument("--tokens", type=int, default=128)
        command.add_argument("--rounds", type=int, default=3)
    measured = commands.add_parser("peak")
    measured.set_defaults(part=peak)
    measured.add_argument("--output", type=Path, required=True)
    measured.add_argument("rest", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if (found := given.part(given)) is not None:
        report(found)


if __name__ == "__main__":
    main()
