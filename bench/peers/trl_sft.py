"""Fine-tune with TRL's SFTTrainer, for bench/finetune_peer.py: LoRA, on rows that have their token ids.

Reads a JSON object of settings from standard input, and writes the tokens and seconds of the training to its
`output`, beside the adapter. It runs in TRL's own environment and imports nothing of ours.
"""

import json
import sys
import time
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer


def main() -> None:
    given = json.load(sys.stdin)
    torch.set_num_threads(given["threads"])
    output = Path(given["output"])
    settings = SFTConfig(
        output_dir=str(output),
        max_length=given["context"],
        packing=True,
        per_device_train_batch_size=1,  # it joins the rows of a batch under one mask: one row is its fastest
        gradient_accumulation_steps=given["rows"],
        max_steps=given["steps"],
        learning_rate=given["learning_rate"],
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        bf16=given["bf16"],
        gradient_checkpointing=False,  # its default would compute all activations twice
        logging_steps=1000,
        save_strategy="no",
        report_to="none",
        seed=given["seed"],
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
    )
    lora = LoraConfig(
        task_type="CAUSAL_LM", r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear"
    )
    trainer = SFTTrainer(
        AutoModelForCausalLM.from_pretrained(given["model"], dtype=torch.float32),
        args=settings,
        train_dataset=Dataset.from_list(given["examples"]),
        processing_class=AutoTokenizer.from_pretrained(given["model"]),
        peft_config=lora,
    )
    rows = len(trainer.train_dataset)
    tokens = sum(len(row["input_ids"]) for row in trainer.train_dataset)
    before = time.process_time()
    done = trainer.train().metrics
    used = time.process_time() - before
    trainer.save_model(str(output / "adapter"))
    facts = {"rows": rows, "tokens": tokens, "seconds": done["train_runtime"], "processor_seconds": used}
    (output / "summary.json").write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
