"""Load the model in the folder `original` beside this script, check its vectors, and save it as `model`.

It runs in the shared root, with its transformers and torch. Saved again, the model has the tensors that
transformers knows and no others, and its tokenizer in one file. The vectors are those of a
sentence-transformers model: the mean of the last layer over the tokens of a text, at length 1.
"""

import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(HERE), "TMPDIR": str(HERE)}

import torch  # noqa: E402
from transformers import AutoModel, AutoTokenizer  # noqa: E402

NAME = "sentence-transformers/all-MiniLM-L6-v2"
KEPT = (
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
    "README.md",
)
"""Files that say how a vector is made of the last layer, how long a text may be, and the license."""
LONGEST = 256
EXPECTED = {
    "The bank blocked my card.": (-0.00515, 0.03295, -0.01287, 0.01555, 0.01558, -0.09188),
    "My payment card was locked by the bank.": (-0.01035, 0.04564, -0.0072, 0.01906, 0.00939, -0.00497),
    "Bees make honey in summer.": (-0.00959, -0.01532, 0.04373, 0.04681, -0.00614, 0.01003),
    "Ein Überweisungsauftrag über 5,00 €.": (-0.01751, 0.12634, 0.04563, 0.04842, -0.03592, 0.01216),
    "word " * 400: (-0.00812, -0.09559, -0.03867, 0.04966, -0.04379, 0.02372),
}
"""The first numbers of the vectors that load_model() of the package makes (sentence-transformers 6.2.0)."""
TOLERANCE = 1e-3
PARAPHRASE = ("The bank blocked my card.", "My payment card was locked by the bank.")
UNRELATED = "Bees make honey in summer."
LEAST_DIFFERENCE = 0.5


def vectors(folder: Path, texts: list[str]) -> torch.Tensor:
    tokenizer = AutoTokenizer.from_pretrained(folder)  # nosec B615: a folder here, not the hub
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()  # nosec B615: as above
    read = tokenizer(texts, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
    with torch.no_grad():
        last = model(**read).last_hidden_state
    mask = read["attention_mask"].unsqueeze(-1)
    mean = (last * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(mean, dim=1)


def check(folder: Path) -> None:
    """Exit with the reason unless the saved model makes the vectors of the original."""
    found = dict(zip(EXPECTED, vectors(folder, list(EXPECTED)), strict=True))
    for text, numbers in EXPECTED.items():
        worst = (found[text][: len(numbers)] - torch.tensor(numbers)).abs().max().item()
        if worst > TOLERANCE:
            sys.exit(f"The converted model is wrong. The vector of {text[:40]!r} differs by {worst:.4f}.")
    one, other = (found[text] for text in PARAPHRASE)
    near, far = float(one @ other), float(one @ found[UNRELATED])
    if near - far < LEAST_DIFFERENCE:
        sys.exit(f"The converted model is wrong. A paraphrase is {near:.2f} near, another text {far:.2f}.")


def main() -> None:
    original, folder = HERE / "original", HERE / "model"
    model = AutoModel.from_pretrained(original, dtype=torch.float32)  # nosec B615: a folder here, not the hub
    tokenizer = AutoTokenizer.from_pretrained(original)  # nosec B615: as above
    # As it comes, its tokenizer cuts each text to 128 tokens and fills it up to them, unless told otherwise.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    model.config.name_or_path = NAME
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for name in KEPT:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(original / name, folder / name)
    check(folder)


main()
