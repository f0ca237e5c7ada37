#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cuts prompts out of the training text, for traces that routers are fine-tuned on.

    excerpts.py --data DATA --count 1000 --out excerpts.jsonl

DATA: made by corpus.py. The four domains in turn; each prompt is one excerpt of 120 to 240
characters, begun at a word, from a document drawn by --seed. Fields text, id, domain.
"""
import argparse
import json
import random
from pathlib import Path

DOMAINS = ("en", "zh", "code", "qa")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    texts = {d: [json.loads(line)["text"] for line in open(options.data / f"{d}.train.jsonl")]
             for d in DOMAINS}
    rng = random.Random(options.seed)
    with open(options.out, "w") as out:
        for n in range(options.count):
            domain = DOMAINS[n % len(DOMAINS)]
            text = ""
            while len(text) < 40:
                document = rng.choice(texts[domain])
                start = rng.randrange(max(1, len(document) - 120))
                if start > 0 and domain != "zh":
                    start = document.find(" ", start) + 1
                text = document[start:start + rng.randrange(120, 241)].strip()
                if domain == "zh":
                    text = text[:len(text) // 2]
            out.write(json.dumps({"text": text, "id": f"{domain}-{n}", "domain": domain},
                                 ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
