#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes the routers of a checkpoint on a domain that it was not trained on (claim C75): once as
whole matrices, the reference, and once as a low-rank adapter.

    domain_router.py --model CKPT --out FOLDER

The domain is our e-commerce Chinese (experiments/prompts/make_sets.py): 1000 texts made of the same
parts as scenarios/prompts/shop_*.jsonl, none of them in those sets, which are the test. Everything
but the routers is fixed; the loss is that of the next token, with gradients through the weights of
the chosen experts. The step with the least loss on 100 further texts is taken. Reference and
adapter differ in start and in the order of the texts, so that one does not copy the other.

Agreement: share of tokens x layers with the reference's set of experts, each model in closed loop,
on the test sets. Writes domain_reference.safetensors (the reference's change
W' - W as an adapter of full rank: lora_b = 1), domain_adapter.safetensors (--rank), .json beside it.
"""
import argparse
import copy
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "experiments/prompts"))

import make_sets  # noqa: E402
from model import load  # noqa: E402

COUNTS = {"complaint": 400, "product": 100, "promotion": 200, "after_sales": 300}
UNSEEN = {"complaint": 40, "product": 20, "promotion": 20, "after_sales": 20}


def shipped(name):
    with open(ROOT / f"scenarios/prompts/{name}.jsonl") as stream:
        return [json.loads(line)["text"] for line in stream]


def texts():
    """Texts to train on and to choose the step with, by the hash of each."""
    train, unseen = [], []
    for name, (_, parts) in make_sets.SHOP.items():
        test = set(shipped(f"shop_{name}"))
        made = {"".join(pieces).replace("{item}", item)
                for pieces in make_sets.itertools.product(*parts)
                for item in make_sets.ITEMS[:4]} - test
        made = sorted(made, key=make_sets.digest)
        count = COUNTS[name]
        train += made[:count]
        unseen += made[count:count + UNSEEN[name]]
    assert len(train) == 1000 and len(unseen) == 100
    return train, unseen


def rows(texts):
    """Token ids [B, T], -1 behind each text's end."""
    ids = [torch.tensor(make_sets.TOKENIZER.encode(t).ids) for t in texts]
    return nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-1)


class Gate(nn.Module):
    """A router W + change, W fixed. rank 0: the change is a whole matrix."""

    def __init__(self, weight, rank, generator):
        super().__init__()
        self.register_buffer("base", weight.detach().clone())
        experts, hidden = weight.shape
        if rank:
            self.a = nn.Parameter(torch.randn(rank, hidden, generator=generator) * hidden ** -0.5)
            self.b = nn.Parameter(torch.zeros(experts, rank))
        else:
            self.a = nn.Parameter(torch.zeros(experts, hidden))
            self.b = torch.eye(experts)

    def forward(self, x):
        return F.linear(x, self.base + self.b @ self.a)


def loss_of(model, ids):
    logits, _, chosen = model(ids.clamp(min=0))
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), ignore_index=-1)
    return loss, [c[(ids >= 0).flatten()] for c in chosen]


def tune(start, train, unseen, rank, seed, options):
    model = copy.deepcopy(start)
    for p in model.parameters():
        p.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for layer in model.layers:
        moe = layer.block_sparse_moe
        moe.gate = Gate(moe.gate.weight, rank, generator)
    tuned = [p for layer in model.layers for p in layer.block_sparse_moe.gate.parameters()]
    optimiser = torch.optim.Adam(tuned, lr=options.lr)
    course, best = [], None
    for step in range(options.steps + 1):
        if step % options.every == 0:
            with torch.no_grad():
                course.append(loss_of(model, unseen)[0].item())
            if best is None or course[-1] < min(course[:-1]):
                best = copy.deepcopy(model.state_dict())
        picked = torch.randperm(len(train), generator=generator)[:options.batch]
        loss_of(model, train[picked])[0].backward()
        optimiser.step()
        optimiser.zero_grad()
    model.load_state_dict(best)
    return model, course


def agreement(model, reference, ids):
    """Shares of equal sets and of equal first experts."""
    with torch.no_grad():
        ours, theirs = loss_of(model, ids)[1], loss_of(reference, ids)[1]
    same = torch.cat([(a.sort(-1).values == b.sort(-1).values).all(-1)
                      for a, b in zip(ours, theirs)])
    first = torch.cat([a[:, 0] == b[:, 0] for a, b in zip(ours, theirs)])
    return {"set": same.double().mean().item(), "first": first.double().mean().item()}


def save(model, path):
    tensors = {}
    for n, layer in enumerate(model.layers):
        gate = layer.block_sparse_moe.gate
        tensors[f"layers.{n}.router.lora_a"] = gate.a.detach().contiguous()
        tensors[f"layers.{n}.router.lora_b"] = gate.b.detach().contiguous()
    save_file(tensors, path)
    path.chmod(0o644)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rank", type=int, default=4, help="of the adapter")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = load(options.model).eval()
    train, unseen = map(rows, texts())
    test = rows([t for name in make_sets.SHOP for t in shipped(f"shop_{name}")])
    reference, course = tune(start, train, unseen, 0, 1, options)
    report = {"model": options.model.name, "texts": len(train), "tokens": int((train >= 0).sum()),
              "steps": options.steps, "lr": options.lr, "course": {"reference": course},
              "loss": {}, "agreement": {}}

    def note(name, model):
        with torch.no_grad():
            report["loss"][name] = loss_of(model, test)[0].item()
        report["agreement"][name] = agreement(model, reference, test)
        print(name, report["loss"][name], report["agreement"][name], flush=True)

    note("original", start)
    note("reference", reference)
    save(reference, options.out / "domain_reference.safetensors")
    adapter, course = tune(start, train, unseen, options.rank, 2, options)
    report["course"]["adapter"] = course
    note("adapter", adapter)
    save(adapter, options.out / "domain_adapter.safetensors")
    (options.out / "domain_adapter.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
