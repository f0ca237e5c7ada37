#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeded synthetic Mixture-of-Experts model that the speed comparison runs, as a
safetensors checkpoint for Switchyard and as GGUF for llama.cpp, in BF16 or F32. The F32 weights are
the BF16 ones widened, so both engines and both formats compute the same model.

    synthetic.py FOLDER --dtype bf16|f32 --switchyard build/dev/bin/switchyard

makes FOLDER/<dtype>/{config.json,model.safetensors} and, with `switchyard export gguf`,
FOLDER/<dtype>.gguf (2 x 2.1 or 2 x 4.2 GB). Needs numpy. Not part of the build or of CI.
"""
import argparse
import json
import pathlib
import struct
import subprocess

import numpy as np

CONFIG = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "vocab_size": 16384,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 10,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_local_experts": 16,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def tensors():
    """(name, shape, scale of the normal distribution or None for ones), in file order."""
    c = CONFIG
    h, inner, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    yield "model.embed_tokens.weight", (c["vocab_size"], h), 1.0
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        yield p + "input_layernorm.weight", (h,), None
        for name, rows, cols in (("q", q, h), ("k", kv, h), ("v", kv, h), ("o", h, q)):
            yield p + f"self_attn.{name}_proj.weight", (rows, cols), cols**-0.5
        yield p + "post_attention_layernorm.weight", (h,), None
        yield p + "block_sparse_moe.gate.weight", (c["num_local_experts"], h), 2 * h**-0.5
        for e in range(c["num_local_experts"]):
            x = p + f"block_sparse_moe.experts.{e}."
            yield x + "w1.weight", (inner, h), h**-0.5
            yield x + "w3.weight", (inner, h), h**-0.5
            yield x + "w2.weight", (h, inner), inner**-0.5
    yield "model.norm.weight", (h,), None
    yield "lm_head.weight", (c["vocab_size"], h), h**-0.5


def values(index, shape, scale):
    """BF16 bits of tensor number `index`."""
    if scale is None:
        return np.full(shape, 0x3F80, np.uint16)
    random = np.random.Generator(np.random.SFC64([2080, index]))
    bits = (random.standard_normal(shape, np.float32) * np.float32(scale)).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widened(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def write_checkpoint(folder, dtype):
    size = {"bf16": 2, "f32": 4}[dtype]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | {"torch_dtype": {
        "bf16": "bfloat16", "f32": "float32"}[dtype]}, indent=1) + "\n")
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, _ in tensors():
        n = int(np.prod(shape)) * size
        header[name] = {"dtype": dtype.upper(), "shape": list(shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64 + 56)  # 8 bytes of length before it: data begins on a line
    with open(folder / "model.safetensors.tmp", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for index, (_, shape, scale) in enumerate(tensors()):
            bits = values(index, shape, scale)
            out.write((bits if dtype == "bf16" else widened(bits)).tobytes())
    (folder / "model.safetensors.tmp").rename(folder / "model.safetensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--dtype", choices=("bf16", "f32"), required=True)
    parser.add_argument("--switchyard", required=True, help="the program, for export gguf")
    args = parser.parse_args()
    checkpoint = args.folder / args.dtype
    write_checkpoint(checkpoint, args.dtype)
    subprocess.run([args.switchyard, "export", "gguf", checkpoint, "-o",
                    args.folder / f"{args.dtype}.gguf", "--type", args.dtype], check=True)
    count = sum(int(np.prod(shape)) for _, shape, _ in tensors())
    print(f"{count:,} parameters in {checkpoint} and {args.folder / (args.dtype + '.gguf')}")


if __name__ == "__main__":
    main()
