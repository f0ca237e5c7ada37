#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Evaluates an exported checkpoint and writes REPORT.md and report.json.

Per domain, on held-out text in blocks of --context tokens, with the BF16 weights and FP32
arithmetic: loss, bits per byte, and per layer the spread of the experts' load. The numbers are
defined in REPORT.md. The loss is computed a second time by Hugging Face's MixtralForCausalLM
(skipped, and the report says so, where transformers is missing); a difference above 1e-4 ends with
exit status 1.
"""
import argparse
import hashlib
import json
import math
import platform
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from model import load

DOMAINS = ("en", "zh", "code", "qa")
NAMES = {"en": "English encyclopaedia", "zh": "Chinese", "code": "C++ and Python",
         "qa": "questions and answers"}
OPENINGS = {"en": ["Computer science\n\n", "A kernel is"], "zh": ["作者：李白\n", "本手册描述了"],
            "code": ["template<typename _Tp>\n    ", "class Queue:\n    def __init__(self"],
            "qa": ["Q: How do I install a package?\n\nA:", "Q: What is freedom?\n\nA:"]}


def blocks(ids, context, limit):
    count = min(limit, (len(ids) - 1) // context)
    return torch.from_numpy(np.stack([ids[i * context:(i + 1) * context + 1]
                                      for i in range(count)]).astype(np.int64))


def spread(counts):
    """Population CV (std / mean), share of the three most used, experts never chosen."""
    counts = counts.double()
    top = counts.sort(descending=True).values
    return {"cv": (counts.std(unbiased=False) / counts.mean()).item(),
            "top3": (top[:3].sum() / counts.sum()).item(),
            "unused": int((counts == 0).sum()), "counts": counts.long().tolist()}


def information(tables):
    """Mutual information between domain (equal weights) and chosen expert, in bits."""
    p = torch.stack([t.double() / t.sum() for t in tables]) / len(tables)
    outer = p.sum(1, keepdim=True) * p.sum(0, keepdim=True)
    return (p[p > 0] * (p / outer)[p > 0].log2()).sum().item()


def sample(model, tokenizer, text, count, seed, temperature, keep):
    generator = torch.Generator().manual_seed(seed)
    ids = tokenizer.encode(text).ids
    with torch.no_grad():
        for _ in range(count):
            logits = model(torch.tensor([ids]))[0][0, -1] / temperature
            best, index = logits.topk(keep)
            choice = torch.multinomial(best.softmax(-1), 1, generator=generator)
            if index[choice].item() == 0:
                break
            ids.append(index[choice].item())
    return tokenizer.decode(ids)


def hf_losses(folder, rows):
    try:
        from transformers import MixtralForCausalLM
    except ImportError:
        return None
    model = MixtralForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    losses = {}
    with torch.no_grad():
        for domain, block in rows.items():
            total = 0.0
            for part in block.split(8):
                logits = model(input_ids=part[:, :-1]).logits
                total += F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(),
                                         reduction="sum").item()
            losses[domain] = total / block[:, 1:].numel()
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with held-out .npy")
    parser.add_argument("--model", type=Path, required=True, help="exported checkpoint")
    parser.add_argument("--log", type=Path, required=True, help="log.jsonl of train.py")
    parser.add_argument("--note", default="", help="how it was trained, for the report")
    parser.add_argument("--out", type=Path, required=True, help="folder for REPORT.md, report.json")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=110, help="blocks a domain, at most")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = load(options.model).eval()
    c = model.c
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    # A run that was stopped and resumed logs the steps in between twice: the last line counts.
    history = {}
    for line in open(options.log):
        history[json.loads(line)["step"]] = json.loads(line)
    history = [history[step] for step in sorted(history)]
    rows = {d: blocks(np.load(options.data / f"{d}.heldout.npy"), options.context, options.blocks)
            for d in DOMAINS}
    report = {"weights_sha256": hashlib.sha256(
                  (options.model / "model.safetensors").read_bytes()).hexdigest(),
              "steps": history[-1]["step"], "torch": torch.__version__.split("+")[0],
              "machine": platform.machine(), "domains": {}, "layers": [], "history": history}
    # A byte-level token has one character per byte; the end mark (id 0) stands for none.
    bytes_of = torch.tensor([0] + [len(tokenizer.id_to_token(i)) for i in range(1, c.vocab)])
    tables = [[] for _ in range(c.layers)]
    for domain, block in rows.items():
        total, size, counts = 0.0, 0, torch.zeros(c.layers, c.experts, dtype=torch.long)
        with torch.no_grad():
            for part in block.split(8):
                logits, _, chosen = model(part[:, :-1])
                total += F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(),
                                         reduction="sum").item()
                for layer, choice in enumerate(chosen):
                    counts[layer] += torch.bincount(choice.flatten(), minlength=c.experts)
                size += bytes_of[part[:, 1:]].sum().item()
        tokens = block[:, 1:].numel()
        report["domains"][domain] = {
            "tokens": tokens, "loss": total / tokens,
            "bits_per_byte": total / math.log(2) / size,
            "layers": [spread(counts[layer]) for layer in range(c.layers)]}
        for layer in range(c.layers):
            tables[layer].append(counts[layer])
    for table in tables:
        even = torch.stack([t.double() / t.sum() for t in table]).sum(0)
        entry = spread((even * 1e6).round())
        entry["counts"] = [round(v, 4) for v in (even / even.sum()).tolist()]
        entry["domain_information_bits"] = information(table)
        report["layers"].append(entry)
    theirs = hf_losses(options.model, {d: r[:16] for d, r in rows.items()})
    if theirs:
        with torch.no_grad():
            for domain in DOMAINS:
                part = rows[domain][:16]
                ours = F.cross_entropy(model(part[:, :-1])[0].flatten(0, 1),
                                       part[:, 1:].flatten()).item()
                report["domains"][domain]["transformers_difference"] = abs(ours - theirs[domain])
    report["samples"] = [
        {"domain": d, "opening": text,
         "text": sample(model, tokenizer, text, 70, 7 + n, 0.7, 40)}
        for d in DOMAINS for n, text in enumerate(OPENINGS[d])]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "report.json").write_text(
        json.dumps(report, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    (options.out / "REPORT.md").write_text(markdown(report, c, options))
    worst = max((d.get("transformers_difference", 0.0) for d in report["domains"].values()))
    print(f"loss {[round(d['loss'], 4) for d in report['domains'].values()]}, "
          f"largest difference to transformers {worst:.2e}")
    return 1 if worst > 1e-4 else 0


def markdown(report, c, options):
    layers = range(c.layers)
    out = ["# The shipped checkpoint: training report", "",
           "Written by `evaluate.py`; the same numbers and the load of every expert are in "
           "`report.json`.", "",
           f"`scenarios/checkpoints/sy-16x2`: Mixtral layout, {c.layers} MoE layers, {c.experts} "
           f"experts, top-{c.top_k}, hidden {c.hidden}, expert width {c.inner}, {c.heads} query "
           f"and {c.kv_heads} KV heads of {c.head_dim}, vocabulary {c.vocab}. Trained on sequences "
           f"of {options.context} tokens: positions beyond that were never seen in training.", ""]
    if options.note:
        out += [options.note, ""]
    out += [f"Steps: {report['steps']}. SHA-256 of `model.safetensors`: "
            f"`{report['weights_sha256']}`.", "", "## Loss on held-out text", "",
            f"Blocks of {options.context} tokens, BF16 weights, FP32 arithmetic. Loss in nats per "
            f"token; uniform guessing gives ln {c.vocab} = {math.log(c.vocab):.2f}. The last "
            "column is the difference to the loss Hugging Face's `MixtralForCausalLM` computes from "
            "the same files (first 16 blocks).", "",
            "| domain | text | tokens | loss [nat/token] | bits per byte | difference to "
            "transformers |", "|---|---|---:|---:|---:|---:|"]
    for d, row in report["domains"].items():
        theirs = row.get("transformers_difference")
        out.append(f"| {d} | {NAMES[d]} | {row['tokens']} | {row['loss']:.3f} | "
                   f"{row['bits_per_byte']:.3f} | "
                   f"{'not measured' if theirs is None else f'{theirs:.1e}'} |")
    out += ["", "## Load of the experts", "",
            f"Counts over the {c.experts} experts of one layer, all top-{c.top_k} choices. "
            "CV = std / mean (population, 0 = even). Top-3 share = part of the choices that fall "
            f"on the three most used experts (even: {3 / c.experts:.3f}). `all` weighs the four "
            "domains equally. Information = mutual information between domain and chosen expert "
            "(0 = experts do not tell domains apart, 2 bits = each expert serves one domain).", "",
            "| layer | CV all | " + " | ".join(f"CV {d}" for d in DOMAINS) + " | top-3 all | " +
            " | ".join(f"top-3 {d}" for d in DOMAINS) + " | least share | information [bit] |",
            "|---:|" + "---:|" * 12]
    for n in layers:
        entry = report["layers"][n]
        parts = [report["domains"][d]["layers"][n] for d in DOMAINS]
        out.append(f"| {n} | {entry['cv']:.3f} | " + " | ".join(f"{p['cv']:.3f}" for p in parts) +
                   f" | {entry['top3']:.3f} | " + " | ".join(f"{p['top3']:.3f}" for p in parts) +
                   f" | {min(entry['counts']):.4f} | {entry['domain_information_bits']:.3f} |")
    out += ["", f"Experts that no held-out token chose, over all layers: "
            f"{sum(e['unused'] for e in report['layers'])}.", "", "## Course of the training", "",
            "| step | train loss | balance loss (even = 2) | " +
            " | ".join(f"held-out {d}" for d in DOMAINS) + " |", "|---:" * 7 + "|"]
    history = report["history"]
    stride = max(1, len(history) // 16)
    for line in history[::-1][::stride][::-1]:
        out.append(f"| {line['step']} | {line['train']:.3f} | {line['aux']:.3f} | " +
                   " | ".join(f"{line['heldout'][d]:.3f}" for d in DOMAINS) + " |")
    out += ["", "The held-out column of this table uses the first 16 blocks and FP32 weights.", "",
            "## Samples", "", "Temperature 0.7, top 40, 70 tokens, first draw, not selected.", ""]
    for item in report["samples"]:
        text = item["text"].replace("```", "'''")
        out += [f"**{item['domain']}**, opening {json.dumps(item['opening'], ensure_ascii=False)}:",
                "", "```text", *(line.rstrip() for line in text.split("\n")), "```", ""]
    return "\n".join(out).rstrip() + "\n"


if __name__ == "__main__":
    sys.exit(main())
