# SPDX-License-Identifier: Apache-2.0
"""Router inputs and router weights, as the fine-tuning scripts need them."""
import json
from pathlib import Path

import h5py
import numpy as np
import torch
from safetensors.torch import load_file


def router_inputs(path):
    """Layer numbers [L], router inputs [T, L, H] in FP32, first row of each sequence [T] bool.
    The trace is made with `switchyard trace --router-input`."""
    with h5py.File(path, "r") as file:
        if "router_input" not in file:
            raise SystemExit(f"{path} has no router_input: trace with --router-input")
        bits = file["router_input"][...]
        layers = file["layer/number"][...].tolist()
        sequence = file["token/sequence"][...]
        position = file["token/position"][...]
    order = np.lexsort((position, sequence))
    wide = torch.from_numpy((bits[order].astype(np.uint32) << 16).view(np.float32))
    return layers, wide, torch.from_numpy(position[order] == 0)


def routers(folder, layers):
    """[E, H] per layer of a checkpoint in Mixtral's names, FP32; and k."""
    weights = load_file(Path(folder) / "model.safetensors")
    config = json.loads((Path(folder) / "config.json").read_text())
    return [weights[f"model.layers.{n}.block_sparse_moe.gate.weight"].float()
            for n in layers], config["num_experts_per_tok"]


def load_cv(chosen, experts):
    """Population std / mean of the assignments per expert."""
    counts = torch.bincount(chosen.flatten(), minlength=experts).double()
    return (counts.std(unbiased=False) / counts.mean()).item()
