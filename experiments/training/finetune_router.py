#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes the routers of a checkpoint on recorded router inputs (M23) and writes the change as a
low-rank adapter that the policy key `condition.adapter` takes.

    switchyard trace --model CKPT --prompts excerpts.jsonl --max-new 0 --router-input -o t.h5
    finetune_router.py --trace t.h5 --model CKPT --data DATA --rank 16 --out adapter.safetensors

Per layer, over the recorded inputs x: router (W + B A) x with W fixed; loss = KL(old || new) +
aux * E sum_e f_e P_e, f_e the choices and P_e the mean probability of expert e. No gradient passes
through the model, so the inputs stay as recorded.

The coefficient is the largest of --aux whose loss of next tokens (closed loop, all adapters in
place) on the validation half of the held-out text rises by at most --rise; the other half gives
the reported numbers. Tensors: layers.N.router.lora_a [r, H], lora_b [E, r].
"""
import argparse
import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from evaluate import DOMAINS, blocks
from model import load
from traces import load_cv, router_inputs, routers


def tune(x, w, top_k, rank, aux, options):
    """A [r, H], B [E, r] of one layer."""
    experts = w.shape[0]
    generator = torch.Generator().manual_seed(options.seed)
    a = (torch.randn(rank, w.shape[1], generator=generator) * w.shape[1] ** -0.5).requires_grad_()
    b = torch.zeros(experts, rank, requires_grad=True)
    optimiser = torch.optim.Adam([a, b], lr=options.lr)
    for step in range(options.steps):
        for group in optimiser.param_groups:
            group["lr"] = options.lr * (1 - step / options.steps)
        rows = x[torch.randint(len(x), (options.batch,), generator=generator)]
        old = F.linear(rows, w).log_softmax(-1)
        new = F.linear(rows, w + b @ a).log_softmax(-1)
        kl = (old.exp() * (old - new)).sum(-1).mean()
        p = new.exp()
        f = torch.bincount(p.topk(top_k, -1).indices.flatten(), minlength=experts) / len(rows)
        (kl + aux * experts * (f * p.mean(0)).sum()).backward()
        optimiser.step()
        optimiser.zero_grad()
    return a.detach(), b.detach()


def measure(model, rows):
    """Mean loss over domains and load_cv (all tokens as one window, mean over layers)."""
    losses, chosen = [], [[] for _ in range(model.c.layers)]
    with torch.no_grad():
        for block in rows.values():
            logits, _, picked = model(block[:, :-1])
            losses.append(F.cross_entropy(logits.flatten(0, 1), block[:, 1:].flatten()).item())
            for layer, choice in enumerate(picked):
                chosen[layer].append(choice)
    cv = [load_cv(torch.cat(c), model.c.experts) for c in chosen]
    return {"loss": sum(losses) / len(losses), "load_cv": sum(cv) / len(cv), "load_cv_by_layer": cv}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder with held-out .npy")
    parser.add_argument("--out", type=Path, required=True, help="adapter; .json beside it")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--aux", type=float, nargs="+",
                        default=[0.003, 0.01, 0.03, 0.1, 0.3, 1.0])
    parser.add_argument("--rise", type=float, default=0.008)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--lr", type=float, default=3e-2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    layers, inputs, _ = router_inputs(options.trace)
    weights, top_k = routers(options.model, layers)
    model = load(options.model).eval()
    halves = {d: blocks(np.load(options.data / f"{d}.heldout.npy"), 256, 32) for d in DOMAINS}
    validation = {d: r[0::2] for d, r in halves.items()}
    test = {d: r[1::2] for d, r in halves.items()}
    gates = [layer.block_sparse_moe.gate for layer in model.layers]

    def apply(adapters):
        with torch.no_grad():
            for gate, w, (a, b) in zip(gates, weights, adapters):
                gate.weight.copy_(w + b @ a)

    none = [(torch.zeros(1, w.shape[1]), torch.zeros(w.shape[0], 1)) for w in weights]
    before = measure(model, validation)
    print("before", before, flush=True)
    course, best = [], None
    for aux in options.aux:
        adapters = [tune(inputs[:, n].contiguous(), w, top_k, options.rank, aux, options)
                    for n, w in enumerate(weights)]
        apply(adapters)
        after = measure(model, validation)
        rise = after["loss"] / before["loss"] - 1
        course.append({"aux": aux, "rise": rise, "load_cv": after["load_cv"]})
        print(course[-1], flush=True)
        if rise <= options.rise:
            best = (aux, adapters)
        elif best:
            break
    if best is None:
        raise SystemExit("no coefficient keeps the loss within the bound: give smaller ones")
    aux, adapters = best
    apply(none)
    result = {"model": options.model.name, "rank": options.rank, "aux": aux,
              "rows": len(inputs), "validation": course, "before": measure(model, test)}
    apply(adapters)
    result["after"] = measure(model, test)
    result["rise"] = result["after"]["loss"] / result["before"]["loss"] - 1
    save_file({f"layers.{n}.router.lora_{key}": value.contiguous()
               for n, pair in zip(layers, adapters) for key, value in zip("ab", pair)},
              options.out)
    options.out.chmod(0o644)
    options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
