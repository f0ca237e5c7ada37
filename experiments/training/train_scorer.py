#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the second tier of two-tier routing (M18) for a checkpoint in Mixtral's layout: per MoE
layer an MLP H -> 64 -> E that imitates the FP32 router (KL to its softmax) on the hidden states of
training text. Writes the .safetensors file that two_tier.scorer of a policy names:
layers.N.w1 [64, H], layers.N.b1 [64], layers.N.w2 [E, 64], layers.N.b2 [E], FP32, N the number of
the MoE layer in the model; metadata: the SHA-256 of the checkpoint's weights.

  train_scorer.py --model scenarios/checkpoints/sy-16x2 --data DATA --out scorer.safetensors

DATA holds the token files of tokenize_corpus.py. Seeded; the same inputs give the same file on one
machine. Prints how often its top k equals the router's on held-out text.
"""
import argparse
import hashlib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import MixtralForCausalLM

DOMAINS = ("en", "zh", "code", "qa")
WIDTH = 64


def hidden_states(model, ids):
    """Router inputs and router logits of every layer: [L] of ([T, H], [T, E])."""
    seen = []
    hooks = [layer.mlp.gate.register_forward_pre_hook(
        lambda _, args: seen.append(args[0].reshape(-1, args[0].shape[-1])))
        for layer in model.model.layers]
    with torch.no_grad():
        model(ids)
    for hook in hooks:
        hook.remove()
    gates = [layer.mlp.gate.weight for layer in model.model.layers]
    return [(x, x @ w.detach().T) for x, w in zip(seen, gates)]


def blocks(data, split, count, length, seed):
    generator = np.random.Generator(np.random.Philox(key=[seed, 0]))
    rows = []
    for domain in DOMAINS:
        ids = np.load(Path(data) / f"{domain}.{split}.npy")
        for start in generator.integers(0, len(ids) - length, count // len(DOMAINS)):
            rows.append(ids[start:start + length])
    return torch.from_numpy(np.stack(rows).astype(np.int64))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--sequences", type=int, default=320)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    model = MixtralForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    k = model.config.num_experts_per_tok
    train = hidden_states(model, blocks(options.data, "train", options.sequences, 256, options.seed))
    held = hidden_states(model, blocks(options.data, "heldout", 40, 256, options.seed))
    tensors = {}
    for n, ((x, z), (hx, hz)) in enumerate(zip(train, held)):
        experts, hidden = z.shape[1], x.shape[1]
        net = torch.nn.Sequential(torch.nn.Linear(hidden, WIDTH), torch.nn.GELU(),
                                  torch.nn.Linear(WIDTH, experts))
        optimiser = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, options.steps)
        order = torch.Generator().manual_seed(options.seed)
        for _ in range(options.steps):
            pick = torch.randint(len(x), (1024,), generator=order)
            loss = F.kl_div(F.log_softmax(net(x[pick]), 1), F.log_softmax(z[pick], 1),
                            log_target=True, reduction="batchmean")
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        with torch.no_grad():
            ours = net(hx).topk(k, dim=1).indices.sort(1).values
            theirs = hz.topk(k, dim=1).indices.sort(1).values
            same = (ours == theirs).all(1).float().mean().item()
        print(f"layer {n}: KL {loss.item():.4f} nat, top-{k} sets equal {same:.3f} of held-out tokens")
        for name, value in (("w1", net[0].weight), ("b1", net[0].bias), ("w2", net[2].weight),
                            ("b2", net[2].bias)):
            tensors[f"layers.{n}.{name}"] = value.detach().contiguous()
    digest = hashlib.sha256((Path(options.model) / "model.safetensors").read_bytes()).hexdigest()
    save_file(tensors, options.out, metadata={"checkpoint_sha256": digest})


if __name__ == "__main__":
    main()
