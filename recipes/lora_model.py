"""Load a base model, prepare what is trained of it, or put a finished adapter on it.

The only file that knows `transformers` model classes, `peft` and quantisation.
"""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

import lora_layers
import separate_attention
from recipe_errors import RecipeError
from training_arguments import TrainingArguments

transformers.logging.disable_progress_bar()  # a job's log is a file, not a terminal
warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # of peft


def load_base(model: str, dtype: torch.dtype | None = None, load_in_4bit: bool = False) -> Any:
    """Return a causal language model from a local folder or a hub id, on the CPU or this GPU."""
    options: dict[str, Any] = {"dtype": dtype or torch.float32}
    if load_in_4bit:
        options["quantization_config"] = _four_bit(dtype)
    if torch.cuda.is_available():
        options["device_map"] = {"": torch.cuda.current_device()}
    try:
        return AutoModelForCausalLM.from_pretrained(model, **options)
    except (OSError, ValueError) as error:
        kind = "folder" if Path(model).exists() else "neither a folder here nor a reachable hub id"
        first_line = (str(error).splitlines() or [""])[0]
        raise RecipeError(f"{model}: {kind}; cannot load a model ({first_line})") from error


def _four_bit(dtype: torch.dtype | None) -> BitsAndBytesConfig:
    if not torch.cuda.is_available():
        raise RecipeError("load_in_4bit needs a GPU, none was found; set it to false")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise RecipeError("load_in_4bit needs bitsandbytes; run `pip install bitsandbytes`")
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype or torch.float32,
    )


def to_train(model: Any, arguments: TrainingArguments) -> Any:
    """Return the model with what is trained of it in float32: new LoRA matrices, or all weights."""
    if arguments.lora:
        return with_lora(model, arguments)
    separate_attention.use_separate_attention(model)
    if arguments.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.float()


def with_lora(model: Any, arguments: TrainingArguments) -> Any:
    """Return the model with its weights frozen and new LoRA matrices to train."""
    separate_attention.use_separate_attention(model)
    if arguments.load_in_4bit:
        model = peft.prepare_model_for_kbit_training(
            model, use_gradient_checkpointing=arguments.gradient_checkpointing
        )
    elif arguments.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    try:
        model = peft.get_peft_model(model, adapter_config(arguments))
    except ValueError as error:
        first_line = str(error).splitlines()[0]
        raise RecipeError(f"target_modules or modules_to_save: {first_line}") from error
    for weight in model.parameters():
        if weight.requires_grad:  # small updates are lost in 16 bits
            weight.data = weight.data.float()
    lora_layers.simplify(model)
    return model


def adapter_config(arguments: TrainingArguments) -> peft.LoraConfig:
    return peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=arguments.lora_r,
        lora_alpha=arguments.lora_alpha,
        lora_dropout=arguments.lora_dropout,
        target_modules=arguments.target_modules,
        modules_to_save=arguments.modules_to_save or None,
    )


def with_adapter(model: Any, adapter: Path) -> Any:
    """Return the model with a finished adapter merged into its weights, at full speed."""
    if not (adapter / "adapter_config.json").is_file():
        raise RecipeError(f"{adapter}: no adapter_config.json; give the folder finetune.py wrote")
    return peft.PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
