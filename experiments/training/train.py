#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a checkpoint; by default the shipped one: 16 experts, top-2, four MoE layers, about 6 M
parameters. The lab checkpoints use the same script with the options that lab.py lists.

Seeded and resumable: the batch of step s depends on (seed, s) only, and the state file in --state
holds weights, optimiser and step. The learning rate rises for --warmup steps, stays, and falls as a
cosine over the last --decay steps before --steps. Until the fall begins a run does not depend on
--steps, so a run may be stopped, resumed with another --steps, and is still the run that --steps
alone gives. Every batch holds the four domains in equal parts.

Training is a third faster with GLIBC_TUNABLES=glibc.malloc.mmap_threshold=4294967296:\
glibc.malloc.trim_threshold=8589934592, which keeps freed activations instead of returning them.
"""
import argparse
import dataclasses
import json
import math
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from model import Config, Mixtral, balance_loss, export

DOMAINS = ("en", "zh", "code", "qa")
SHAPES = {
    "shipped": Config(),
    "lab": Config(hidden=64, kv_heads=1, head_dim=16, inner=24, max_positions=4096, tied=True,
                  position_gain=0.1),
}


def configuration(options):
    c = dataclasses.replace(SHAPES[options.shape], positions=options.positions, aux=options.aux)
    if options.dense:
        wide = c.inner * (c.top_k if options.dense == "active" else c.experts)
        c = dataclasses.replace(c, experts=0, top_k=0, inner=wide, aux=0.0)
    return c


def parameter_groups(model, options):
    named = list(model.named_parameters())
    router = [p for n, p in named if n.endswith(".gate.weight") and options.router_lr != 1.0]
    apart = {id(p) for p in router}
    groups = [
        {"params": [p for _, p in named if p.dim() > 1 and id(p) not in apart],
         "weight_decay": options.weight_decay},
        {"params": [p for _, p in named if p.dim() == 1], "weight_decay": 0.0}]
    if router:
        groups.append({"params": router, "weight_decay": 0.0, "factor": options.router_lr})
    return groups


def router_report(model, chosen, c):
    """Per MoE layer, of the last batch: assignments per expert, and the norms of the loss's
    gradient (before clipping) in the expert's router row and in its matrices."""
    report = []
    for layer, choice in zip(model.layers, chosen):
        moe = layer.block_sparse_moe
        report.append({
            "assignments": torch.bincount(choice.flatten(), minlength=c.experts).tolist(),
            "router_gradient": [float(f"{v:.3g}") for v in moe.gate.weight.grad.norm(dim=1)],
            "expert_gradient": [float(f"{v:.3g}") for v in
                                (moe.w13.grad.pow(2).sum((1, 2)) +
                                 moe.w2.grad.pow(2).sum((1, 2))).sqrt()]})
    return report


def batch_at(arrays, seed, step, per_domain, context):
    generator = np.random.Generator(np.random.Philox(key=[seed, step]))
    rows = []
    for domain in DOMAINS:
        ids = arrays[domain]
        for start in generator.integers(0, len(ids) - context - 1, per_domain):
            rows.append(ids[start:start + context + 1])
    return torch.from_numpy(np.stack(rows).astype(np.int64))


def learning_rate(step, options):
    if step < options.warmup:
        return options.lr * (step + 1) / options.warmup
    left = options.steps - step
    if left >= options.decay:
        return options.lr
    return options.lr * (0.02 + 0.98 * 0.5 * (1 - math.cos(math.pi * left / options.decay)))


def heldout_loss(model, arrays, context):
    """Mean cross-entropy per domain over the first 16 blocks of the held-out tokens."""
    losses = {}
    model.eval()
    with torch.no_grad():
        for domain in DOMAINS:
            ids = arrays[domain]
            count = min(16, (len(ids) - 1) // context)
            rows = np.stack([ids[i * context:(i + 1) * context + 1] for i in range(count)])
            rows = torch.from_numpy(rows.astype(np.int64))
            logits, _, _ = model(rows[:, :-1])
            losses[domain] = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item()
    model.train()
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the token arrays")
    parser.add_argument("--state", type=Path, required=True, help="folder for state and log")
    parser.add_argument("--export", type=Path, required=True, help="checkpoint folder to write")
    parser.add_argument("--steps", type=int, default=4800)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--decay", type=int, default=800)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=8, help="sequences a step, a multiple of 4")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--aux", type=float, default=0.01, help="load-balancing coefficient")
    parser.add_argument("--aux-scope", choices=("layer", "model"), default="layer")
    parser.add_argument("--router-lr", type=float, default=1.0,
                        help="the router's learning rate over --lr; other than 1 it has no decay")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="shipped")
    parser.add_argument("--dense", choices=("active", "total"),
                        help="one SwiGLU in place of the experts: as wide as the chosen ones "
                             "together, or as all of them together")
    parser.add_argument("--positions", choices=("rope", "absolute", "alibi"), default="rope")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--every", type=int, default=200, help="steps between state, export, log")
    options = parser.parse_args()
    if options.batch % len(DOMAINS):
        parser.error("--batch must be a multiple of 4")
    torch.set_num_threads(options.threads)

    train = {d: np.load(options.data / f"{d}.train.npy", mmap_mode="r") for d in DOMAINS}
    heldout = {d: np.load(options.data / f"{d}.heldout.npy") for d in DOMAINS}
    config = configuration(options)
    model = Mixtral(config)
    model.initialise(options.seed)
    optimiser = torch.optim.AdamW(parameter_groups(model, options), lr=options.lr,
                                  betas=(0.9, 0.95), eps=1e-8, fused=True)
    options.state.mkdir(parents=True, exist_ok=True)
    state_file = options.state / "state.pt"
    step = 0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        step = state["step"]
    print(f"{sum(p.numel() for p in model.parameters())} parameters, from step {step}", flush=True)

    log = open(options.state / "log.jsonl", "a")
    began, tokens, running = time.monotonic(), 0, []
    while step < options.steps:
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, options) * group.get("factor", 1.0)
        rows = batch_at(train, options.seed, step, options.batch // len(DOMAINS), options.context)
        logits, routing, chosen = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        aux = (balance_loss(routing, config.experts, config.top_k, options.aux_scope)
               if routing else torch.zeros(()))
        (loss + options.aux * aux).backward()
        report = (router_report(model, chosen, config)
                  if (step + 1) % options.every == 0 or step + 1 == options.steps else None)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        step += 1
        tokens += rows[:, 1:].numel()
        running.append(loss.item())
        if step % options.every == 0 or step == options.steps:
            least = [torch.bincount(c.flatten(), minlength=config.experts).min().item()
                     for c in chosen]
            line = {"step": step, "train": sum(running) / len(running), "aux": aux.item(),
                    "heldout": heldout_loss(model, heldout, options.context),
                    "least_loaded": least, "router": report,
                    "cpu_s": time.process_time(), "tokens_per_s": tokens / (time.monotonic() - began)}
            log.write(json.dumps(line) + "\n")
            log.flush()
            print(json.dumps({k: v for k, v in line.items() if k != "router"}), flush=True)
            partial = state_file.with_suffix(".part")
            torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict(),
                        "step": step}, partial)
            os.replace(partial, state_file)
            export(model, options.export, options.data / "tokenizer.json")
            began, tokens, running = time.monotonic(), 0, []


if __name__ == "__main__":
    main()
