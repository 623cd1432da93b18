"""Embeds texts with sentence-transformers, in its own environment: each line of standard input is a JSON list
of texts; the answer is a line with the seconds that it took and the first number of each vector.
"""

import json
import sys
import time

import torch
from sentence_transformers import SentenceTransformer

torch.set_num_threads(int(sys.argv[2]))
model = SentenceTransformer(sys.argv[1], device="cpu")
for line in sys.stdin:
    texts = json.loads(line)
    began = time.perf_counter()
    vectors = model.encode(texts, batch_size=32, show_progress_bar=False)
    seconds = time.perf_counter() - began
    print(json.dumps([seconds, [float(vector[0]) for vector in vectors]]), flush=True)
