#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the byte-level BPE tokenizer and turns the corpus into token arrays.

Reads {domain}.{train,heldout}.jsonl from --data (made by corpus.py); writes tokenizer.json (only if
it is not there yet: the shipped one never changes) and {domain}.{train,heldout}.npy (uint16 ids,
each document followed by <|endoftext|>).

The tokenizer is GPT-2 style: no normalizer, ByteLevel pre-tokenizer with the GPT-2 pattern and
without a prefix space, BPE over 256 byte symbols, ByteLevel decoder, one special token.
"""
import argparse
import hashlib
import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

DOMAINS = ("en", "zh", "code", "qa")
VOCAB = 4096
END = "<|endoftext|>"


def documents(path):
    with open(path) as stream:
        return [json.loads(line)["text"] for line in stream]


def shuffled(texts, seed):
    """A fixed order that mixes the sources of a domain."""
    def key(text):
        return hashlib.blake2b(text.encode(), digest_size=8, salt=str(seed).encode()).digest()
    return sorted(texts, key=key)


def train_tokenizer(data):
    budget = 4_000_000  # bytes per domain, so that each has the same say in the merges
    sample = []
    for domain in DOMAINS:
        used = 0
        for text in shuffled(documents(data / f"{domain}.train.jsonl"), 1):
            used += len(text.encode())
            if used > budget:
                break
            sample.append(text)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=[END], min_frequency=2,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator(sample, trainer)
    return tokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder written by corpus.py")
    options = parser.parse_args()
    path = options.data / "tokenizer.json"
    if not path.exists():
        train_tokenizer(options.data).save(str(path))
    tokenizer = Tokenizer.from_file(str(path))
    assert tokenizer.get_vocab_size() == VOCAB, tokenizer.get_vocab_size()
    end = tokenizer.token_to_id(END)
    for domain in DOMAINS:
        for part in ("train", "heldout"):
            texts = shuffled(documents(options.data / f"{domain}.{part}.jsonl"), 2)
            ids = []
            for encoding in tokenizer.encode_batch(texts):
                ids.extend(encoding.ids)
                ids.append(end)
            np.save(options.data / f"{domain}.{part}.npy", np.array(ids, dtype=np.uint16))
            size = sum(len(t.encode()) for t in texts)
            print(f"{domain:5} {part:8} {len(ids):9} tokens, {size / len(ids):.2f} bytes per token")


if __name__ == "__main__":
    main()
