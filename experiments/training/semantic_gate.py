#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the semantic gate (M03) of a checkpoint on recorded router inputs, and writes the weights
that the policy key `semantic.file` takes.

    switchyard trace --model CKPT --prompts excerpts.jsonl --max-new 0 --router-input -o t.h5
    semantic_gate.py --trace t.h5 --model CKPT --out semantic.safetensors

Per layer: z' = W2 gelu(W1 z + b1) + b2 on the E raw logits z = W x, 256 wide. The target is the
original router on clean inputs, p = softmax(W x): loss = KL(p || softmax(z'(W x))) +
KL(p || softmax(z'(W (x + noise)))), noise normal, --noise times the root mean square of x.

Reported on every tenth sequence, which training does not see: KL(p || q) in nats, agreement of the
top-1 and of the chosen set with the original router on clean inputs, and the share of adjacent tokens whose top-1
differs, for clean and noisy inputs, beside two baselines: no gate, and an exponential moving
average of the logits along the sequence, z'_t = 0.5 z'_{t-1} + 0.5 z_t. Tensors:
layers.N.semantic.{w1 [256, E], b1, w2 [E, 256], b2}.
"""
import argparse
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from traces import router_inputs, routers


def gate(params, z):
    w1, b1, w2, b2 = params
    return F.linear(F.gelu(F.linear(z, w1, b1)), w2, b2)


def noisy(x, noise, generator):
    size = x.pow(2).mean(-1, keepdim=True).sqrt()
    return x + noise * size * torch.randn(x.shape, generator=generator)


def train(x, w, options, generator):
    experts = w.shape[0]
    params = [torch.randn(options.width, experts, generator=generator) * experts ** -0.5,
              torch.zeros(options.width),
              torch.randn(experts, options.width, generator=generator) * options.width ** -0.5,
              torch.zeros(experts)]
    for p in params:
        p.requires_grad_()
    optimiser = torch.optim.Adam(params, lr=options.lr)
    for step in range(options.steps):
        for group in optimiser.param_groups:
            group["lr"] = options.lr * (1 - step / options.steps)
        rows = x[torch.randint(len(x), (options.batch,), generator=generator)]
        z = F.linear(rows, w)
        target = z.softmax(-1)
        loss = 0.0
        for source in (z, F.linear(noisy(rows, options.noise, generator), w)):
            loss = loss + F.kl_div(gate(params, source).log_softmax(-1), target,
                                   reduction="batchmean")
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    return [p.detach() for p in params]


def moving_average(z, starts):
    out = z.clone()
    for t in range(1, len(z)):
        if not starts[t]:
            out[t] = 0.5 * out[t - 1] + 0.5 * z[t]
    return out


def measure(reference, z, starts, top_k):
    best, mine = reference.topk(top_k, -1).indices, z.topk(top_k, -1).indices
    same = (best.sort(-1).values == mine.sort(-1).values).all(-1).double().mean().item()
    inner = ~starts[1:]
    switch = (mine[1:, 0] != mine[:-1, 0])[inner].double().mean().item()
    kl = F.kl_div(z.log_softmax(-1), reference.softmax(-1), reduction="batchmean").item()
    return {"kl": kl, "top1": (best[:, 0] == mine[:, 0]).double().mean().item(), "set": same,
            "switch_rate": switch}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="weights; .json beside it")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--noise", type=float, default=0.2)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    layers, inputs, starts = router_inputs(options.trace)
    weights, top_k = routers(options.model, layers)
    unseen = torch.cumsum(starts.long(), 0) % 10 == 0
    generator = torch.Generator().manual_seed(options.seed)
    tensors, report = {}, []
    for n, number in enumerate(layers):
        x, w = inputs[:, n], weights[n]
        params = train(x[~unseen], w, options, generator)
        for key, value in zip(("w1", "b1", "w2", "b2"), params):
            tensors[f"layers.{number}.semantic.{key}"] = value.contiguous()
        x, first = x[unseen], starts[unseen]
        clean = F.linear(x, w)
        disturbed = F.linear(noisy(x, options.noise, generator), w)
        entry = {"layer": number}
        for name, z in (("clean", clean), ("noisy", disturbed)):
            with torch.no_grad():
                entry[name] = {"identity": measure(clean, z, first, top_k),
                               "average": measure(clean, moving_average(z, first), first, top_k),
                               "gate": measure(clean, gate(params, z), first, top_k)}
        report.append(entry)
        print(json.dumps(entry), flush=True)
    save_file(tensors, options.out)
    options.out.chmod(0o644)
    options.out.with_suffix(".json").write_text(json.dumps(
        {"model": options.model.name, "noise": options.noise, "rows": len(inputs),
         "unseen_rows": int(unseen.sum()), "layers": report}, indent=1) + "\n")


if __name__ == "__main__":
    main()
