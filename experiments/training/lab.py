#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The lab checkpoints: small models that differ in one thing each, all trained by train.py.

    lab.py train --data DATA --state STATE [NAME ...]      trains (resumes) into STATE/NAME/out
    lab.py report --data DATA --state STATE --out FOLDER   copies each finished one to FOLDER/NAME
                                                           with training.json, and writes LAB.md

Held-out text, blocks of 256 tokens, BF16 weights, FP32 arithmetic. Where transformers knows the
model (rotary, with experts) its loss is compared: more than 1e-4 apart ends with exit status 1.
"""
import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from evaluate import DOMAINS, blocks, hf_losses, information, spread
from model import load

HERE = Path(__file__).resolve().parent
COMMON = ["--shape", "lab", "--steps", "1000", "--warmup", "50", "--decay", "300", "--lr", "5e-3",
          "--router-lr", "4", "--every", "100"]
RUNS = {
    "lab-aux-0": (["--aux", "0"], "balance loss 0: collapses"),
    "lab-aux-0.01": (["--aux", "0.01"], "balance loss 0.01; rotary positions"),
    "lab-aux-0.05": (["--aux", "0.05"], "balance loss 0.05"),
    "lab-alibi": (["--aux", "0.01", "--positions", "alibi"], "ALiBi positions"),
    "lab-absolute": (["--aux", "0.01", "--positions", "absolute"], "absolute positions"),
    "lab-dense-active": (["--dense", "active"], "dense twin of equal active parameters"),
    "lab-dense-total": (["--dense", "total"], "dense twin of equal total parameters"),
}
IDLE, BUSY = 0, 1.0  # assignments of a batch: none; at least an even share


def train(options):
    for name in options.names or RUNS:
        subprocess.run([sys.executable, HERE / "train.py", "--data", options.data,
                        "--state", options.state / name, "--export", options.state / name / "out",
                        *COMMON, *RUNS[name][0]], check=True)


def steps_of(name):
    options = [*COMMON, *RUNS[name][0]]  # of a repeated option the last counts
    return int([b for a, b in zip(options, options[1:]) if a == "--steps"][-1])


def history_of(folder):
    lines = {}
    for line in open(folder / "log.jsonl"):
        lines[json.loads(line)["step"]] = json.loads(line)
    return [lines[step] for step in sorted(lines)]


def gradients(history):
    """Mean gradient norms of experts without and with at least an even share of a batch, over the
    logged steps after the first."""
    sums = {"idle": [], "busy": []}
    for line in history[1:]:
        for layer in line["router"] or []:
            even = sum(layer["assignments"]) / len(layer["assignments"])
            for n, router, expert in zip(layer["assignments"], layer["router_gradient"],
                                         layer["expert_gradient"]):
                kind = "idle" if n == IDLE else "busy" if n >= BUSY * even else None
                if kind:
                    sums[kind].append((router, expert))
    return {kind: {"cases": len(rows),
                   "router_gradient": sum(r for r, _ in rows) / len(rows) if rows else None,
                   "expert_gradient": sum(e for _, e in rows) / len(rows) if rows else None}
            for kind, rows in sums.items()}


def evaluate(name, state, data):
    folder = state / name / "out"
    model = load(folder).eval()
    c = model.c
    history = history_of(state / name)
    rows = {d: blocks(np.load(data / f"{d}.heldout.npy"), 256, 48) for d in DOMAINS}
    losses, tables = {}, [[] for _ in range(c.layers if c.experts else 0)]
    with torch.no_grad():
        for domain, block in rows.items():
            total, counts = 0.0, torch.zeros(len(tables), max(1, c.experts), dtype=torch.long)
            for part in block.split(8):
                logits, _, chosen = model(part[:, :-1])
                total += F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(),
                                         reduction="sum").item()
                for layer, choice in enumerate(chosen):
                    counts[layer] += torch.bincount(choice.flatten(), minlength=c.experts)
            losses[domain] = total / block[:, 1:].numel()
            for layer, table in enumerate(tables):
                table.append(counts[layer])
    layers = []
    for table in tables:
        entry = spread(torch.stack(table).sum(0))
        share = torch.tensor(entry["counts"]).double().sort(descending=True).values
        entry["top5"] = (share[:5].sum() / share.sum()).item()
        entry["domain_information_bits"] = information(table)
        layers.append(entry)
    report = {"name": name, "purpose": RUNS[name][1], "options": [*COMMON, *RUNS[name][0]],
              "weights_sha256": hashlib.sha256(
                  (folder / "model.safetensors").read_bytes()).hexdigest(),
              "torch": torch.__version__.split("+")[0], "steps": history[-1]["step"],
              "tokens": history[-1]["step"] * 8 * 256,
              "processor_seconds": round(sum(b["cpu_s"] - (a["cpu_s"] if a["cpu_s"] < b["cpu_s"]
                                                           else 0)
                                             for a, b in zip([{"cpu_s": 0}] + history, history))),
              "parameters": sum(p.numel() for p in model.parameters()),
              "loss": losses, "mean_loss": sum(losses.values()) / len(losses), "layers": layers,
              "gradients": gradients(history) if layers else None,
              "course": [{k: line[k] for k in ("step", "train", "aux")} for line in history]}
    if not c.lab:
        theirs = hf_losses(folder, {d: r[:4] for d, r in rows.items()})
        if theirs:
            with torch.no_grad():
                report["transformers_difference"] = max(abs(F.cross_entropy(
                    model(r[:4, :-1])[0].flatten(0, 1), r[:4, 1:].flatten()).item() - theirs[d])
                    for d, r in rows.items())
    return report


def number(value, form):
    return "–" if value is None else format(value, form)


def router_section(path):
    r = json.loads(path.read_text())
    out = ["## Fine-tuned router (M23)", "",
           f"`scenarios/policies/weights/{path.with_suffix('.safetensors').name}`, policy "
           "`router_finetuned.toml`: the routers of "
           f"`{r['model']}` changed by a rank-{r['rank']} adapter, trained by `finetune_router.py` "
           f"on {r['rows']} recorded router inputs (1000 excerpts) with KL to the old router and "
           f"the balance loss times {r['aux']}. Closed loop on held-out text, the half that did "
           "not choose the coefficient; load_cv over all tokens, mean over layers:", "",
           "| | loss | load_cv | by layer |", "|---|---:|---:|---|"]
    for name in ("before", "after"):
        row = r[name]
        out.append(f"| {name} | {row['loss']:.4f} | {row['load_cv']:.3f} | "
                   f"{' '.join(f'{v:.3f}' for v in row['load_cv_by_layer'])} |")
    out += ["", f"The loss rises by {100 * r['rise']:.2f} %. Coefficients tried, on the other half: "
            + "; ".join(f"{v['aux']}: load_cv {v['load_cv']:.3f}, loss {100 * v['rise']:+.2f} %"
                        for v in r["validation"]) + ".", ""]
    return out


def gate_section(path):
    r = json.loads(path.read_text())
    out = ["## Semantic gate (M03)", "",
           f"`scenarios/policies/weights/{path.with_suffix('.safetensors').name}`, policy "
           f"`semantic_gate.toml`, for `{r['model']}`: trained by `semantic_gate.py` on "
           f"{r['rows'] - r['unseen_rows']} recorded router inputs, clean and with normal noise of "
           f"{r['noise']} times their size; measured on {r['unseen_rows']} others against the "
           "router on clean input. KL in nats; top-1 and chosen set equal; switch = adjacent "
           "tokens whose top-1 differs. Baselines: no gate, and a moving average of the logits.",
           "", "| layer | input | gate | KL | top-1 | set | switch |",
           "|---:|---|---|---:|---:|---:|---:|"]
    for layer in r["layers"]:
        for kind in ("clean", "noisy"):
            for gate in ("identity", "average", "gate"):
                v = layer[kind][gate]
                out.append(f"| {layer['layer']} | {kind} | {gate} | {v['kl']:.4f} | {v['top1']:.3f} "
                           f"| {v['set']:.3f} | {v['switch_rate']:.3f} |")
    switch = {gate: sum(v["clean"][gate]["switch_rate"] for v in r["layers"]) / len(r["layers"])
              for gate in ("identity", "average", "gate")}
    return out + ["", "Switch rate on clean input, mean over layers: "
                  f"{switch['identity']:.3f} without a gate, {switch['gate']:.3f} with it, "
                  f"{switch['average']:.3f} with the moving average.", ""]


def markdown(reports, policies):
    out = ["# The lab checkpoints", "",
           "Written by `lab.py report`; each folder's `training.json` holds the same numbers and "
           "more. One shape: 4 layers, hidden 64, 4 query heads and 1 KV head of 16, tied "
           "embeddings, vocabulary and tokenizer of `sy-16x2`; 16 experts of width 24, top-2, or "
           "one dense SwiGLU (width 48 = the active, 384 = all experts). One recipe, seed 1: 1000 "
           "steps of 8 sequences of 256 tokens (2.05 M tokens), AdamW, learning rate 5e-3, the "
           "router's four times that and without decay, cosine fall over the last 300 steps. The "
           "checkpoints differ only in what their name says. The corpus and its licences: "
           "[PROVENANCE.md](PROVENANCE.md); the weights are ours, Apache-2.0.", "",
           "Seconds are of one processor thread. Loss in nats per token on held-out blocks of 256 "
           "tokens, mean of the four domains. Per layer: CV = std / mean of the assignments per "
           "expert over all held-out text, share of the five busiest experts (even: 0.313), "
           "experts never chosen.", "",
           "| checkpoint | what it is | parameters | seconds | loss | en | zh | code | qa | CV by "
           "layer | top-5 share by layer | unused by layer |",
           "|---|---|---:|---:|---:|---:|---:|---:|---:|---|---|---|"]
    for r in reports:
        def each(key, form, layers=r["layers"]):
            return " ".join(format(entry[key], form) for entry in layers) or "–"
        out.append(f"| `{r['name']}` | {r['purpose']} | {r['parameters']} | "
                   f"{r['processor_seconds']} | {r['mean_loss']:.3f} | " +
                   " | ".join(f"{r['loss'][d]:.3f}" for d in DOMAINS) +
                   f" | {each('cv', '.2f')} | {each('top5', '.2f')} | {each('unused', 'd')} |")
    out += ["", "## Gradients of idle experts", "",
            "Mean norms of the gradient of the training loss (before clipping) in one expert's "
            "router row and in its matrices, over the logged batches after the first: experts that "
            "no token of the batch chose, and experts with at least an even share. The weights of "
            "a token's two experts are divided by their sum, so without a balance loss an idle "
            "expert's router row gets nothing but rounding.", "",
            "| checkpoint | idle cases | router row, idle | router row, busy | matrices, idle | "
            "matrices, busy |", "|---|---:|---:|---:|---:|---:|"]
    for r in reports:
        if r["gradients"]:
            idle, busy = r["gradients"]["idle"], r["gradients"]["busy"]
            out.append(f"| `{r['name']}` | {idle['cases']} | "
                       f"{number(idle['router_gradient'], '.2e')} | "
                       f"{number(busy['router_gradient'], '.2e')} | "
                       f"{number(idle['expert_gradient'], '.2e')} | "
                       f"{number(busy['expert_gradient'], '.2e')} |")
    out.append("")
    for pattern, section in (("router_*.json", router_section), ("semantic_*.json", gate_section)):
        for path in sorted(policies.glob(pattern)):
            out += section(path)
    out += ["## Make them again", "", "```sh",
            "python3 lab.py train --data data --state state   # data: see PROVENANCE.md",
            "python3 excerpts.py --data data --out excerpts.jsonl",
            "for m in lab-aux-0 sy-16x2; do",
            "  switchyard trace --model ../../scenarios/checkpoints/$m --prompts excerpts.jsonl "
            "--max-new 0 --batch 100 --router-input -o $m.h5", "done",
            "weights=../../scenarios/policies/weights",
            "python3 finetune_router.py --trace lab-aux-0.h5 --model "
            "../../scenarios/checkpoints/lab-aux-0 --data data --out "
            "$weights/router_lab-aux-0.safetensors --steps 300 --batch 2048 "
            "--aux 0.1 0.15 0.2 0.25 0.3 0.4",
            "python3 semantic_gate.py --trace sy-16x2.h5 --model ../../scenarios/checkpoints/sy-16x2 "
            "--out $weights/semantic_sy-16x2.safetensors",
            "python3 lab.py report --data data --state state --out ../../scenarios/checkpoints",
            "```", ""]
    worst = max(r.get("transformers_difference", 0.0) for r in reports)
    out.append("Largest difference to the loss of Hugging Face's `MixtralForCausalLM`, for the "
               f"checkpoints it can read: {worst:.1e}.")
    return "\n".join(out) + "\n"


def report(options):
    names = [n for n in RUNS if (options.state / n / "log.jsonl").exists()
             and history_of(options.state / n)[-1]["step"] == steps_of(n)]
    reports = []
    for name in names:
        target = options.out / name
        done = target / "training.json"
        weights = options.state / name / "out" / "model.safetensors"
        digest = hashlib.sha256(weights.read_bytes()).hexdigest()
        if done.exists() and json.loads(done.read_text())["weights_sha256"] == digest:
            reports.append(json.loads(done.read_text()))
            continue
        reports.append(evaluate(name, options.state, options.data))
        shutil.copytree(options.state / name / "out", target, dirs_exist_ok=True)
        done.write_text(json.dumps(reports[-1], sort_keys=True) + "\n")
        print(name, reports[-1]["mean_loss"], flush=True)
    (HERE / "LAB.md").write_text(markdown(reports, options.out.parent / "policies" / "weights"))
    return 1 if any(r.get("transformers_difference", 0.0) > 1e-4 for r in reports) else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("verb", choices=("train", "report"))
    parser.add_argument("names", nargs="*", help="for train; default: all")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    unknown = [n for n in options.names if n not in RUNS]
    if unknown:
        parser.error(f"unknown {unknown}; known: {', '.join(RUNS)}")
    if options.verb == "train":
        return train(options)
    if options.out is None:
        parser.error("report needs --out")
    return report(options)


if __name__ == "__main__":
    sys.exit(main())
