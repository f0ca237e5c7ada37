# SPDX-License-Identifier: Apache-2.0
"""The layer stack of all our checkpoints in PyTorch, for training on one CPU thread.

Same equations as Hugging Face's MixtralForCausalLM (GQA attention with half-rotated RoPE,
RMSNorm, softmax over all experts then top-k then renormalise, SwiGLU experts); `evaluate.py`
compares the two. Expert weights are held fused as [E, ...] and split into per-expert tensors on
export.

The lab checkpoints (lab.py) differ from it by fields of Config: a dense SwiGLU in place of the
experts (`experts` 0), tied embeddings, and two other ways to tell positions apart. Those that
Mixtral cannot express are exported as model_type "switchyard_lab" (engine/README.md).
"""
import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn


@dataclass
class Config:
    vocab: int = 4096
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    inner: int = 192
    experts: int = 16
    top_k: int = 2
    rope_theta: float = 10000.0
    eps: float = 1e-5
    max_positions: int = 2048
    tied: bool = False
    positions: str = "rope"  # rope | absolute (sinusoids added to the embedding) | alibi
    position_gain: float = 1.0  # factor of the sinusoids
    aux: float = 0.01  # balance coefficient, for the exported configuration

    @property
    def lab(self):
        return self.experts == 0 or self.positions != "rope"


class Norm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def rope_tables(config, length):
    inverse = config.rope_theta ** (-torch.arange(0, config.head_dim, 2).float() / config.head_dim)
    angle = torch.outer(torch.arange(length).float(), inverse)
    angle = torch.cat((angle, angle), -1)
    return angle.cos(), angle.sin()  # [length, head_dim] each


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def sinusoids(config, length):
    """[length, H]: sin at even, cos at odd entries of angle p * theta^(-2i/H)."""
    inverse = config.rope_theta ** (-torch.arange(0, config.hidden, 2).double() / config.hidden)
    angle = torch.outer(torch.arange(length).double(), inverse)
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(1).float() * config.position_gain


def alibi_bias(config, length):
    """[h, length, length]: slope_j * (key position - query position), -inf for later keys;
    slope_j = 2^(-8 (j + 1) / h)."""
    slope = 2.0 ** (-8.0 * torch.arange(1, config.heads + 1) / config.heads)
    at = torch.arange(length)
    gap = (at[None, :] - at[:, None]).float()
    return (slope[:, None, None] * gap).masked_fill(gap > 0, -math.inf)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj = nn.Linear(c.hidden, c.heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden, c.kv_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden, c.kv_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.heads * c.head_dim, c.hidden, bias=False)

    def forward(self, x, cos, sin):
        c = self.c
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, c.heads, c.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, c.kv_heads, c.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, c.kv_heads, c.head_dim).transpose(1, 2)
        if c.positions == "rope":
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        group = c.heads // c.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        if c.positions == "alibi":
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=alibi_bias(c, length))
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))


class Experts(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.gate = nn.Linear(c.hidden, c.experts, bias=False)
        self.w13 = nn.Parameter(torch.empty(c.experts, 2 * c.inner, c.hidden))
        self.w2 = nn.Parameter(torch.empty(c.experts, c.hidden, c.inner))

    def forward(self, x):
        """x [T, H] -> y [T, H], router logits [T, E], chosen experts [T, k]."""
        c = self.c
        logits = self.gate(x)
        weight, chosen = torch.topk(logits.softmax(-1), c.top_k, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        # Tokens grouped by expert: one gather, one matrix product per expert, one scatter.
        order = torch.argsort(chosen.reshape(-1), stable=True)
        token = order // c.top_k
        counts = torch.bincount(chosen.reshape(-1), minlength=c.experts).tolist()
        outputs = []
        for rows, w13, w2 in zip(x[token].split(counts), self.w13.unbind(0), self.w2.unbind(0)):
            gate, up = F.linear(rows, w13).chunk(2, -1)
            outputs.append(F.linear(F.silu(gate) * up, w2))
        y = torch.cat(outputs) * weight.reshape(-1)[order, None]
        return torch.zeros_like(x).index_add(0, token, y), logits, chosen


class Dense(nn.Module):
    """One SwiGLU for every token."""

    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden, c.inner, bias=False)
        self.up_proj = nn.Linear(c.hidden, c.inner, bias=False)
        self.down_proj = nn.Linear(c.inner, c.hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x)), None, None


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = Norm(c.hidden, c.eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = Norm(c.hidden, c.eps)
        if c.experts:
            self.block_sparse_moe = Experts(c)
        else:
            self.mlp = Dense(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        feed = self.block_sparse_moe if hasattr(self, "block_sparse_moe") else self.mlp
        y, logits, chosen = feed(self.post_attention_layernorm(x).reshape(-1, x.shape[-1]))
        return x + y.view_as(x), logits, chosen


class Mixtral(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed_tokens = nn.Embedding(c.vocab, c.hidden)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.norm = Norm(c.hidden, c.eps)
        if not c.tied:
            self.lm_head = nn.Linear(c.hidden, c.vocab, bias=False)

    def initialise(self, seed):
        generator = torch.Generator().manual_seed(seed)
        for name, value in self.named_parameters():
            if value.dim() == 1:
                continue
            std = 0.02 if name.startswith("lm_head") else value.shape[-1] ** -0.5
            if name.startswith("embed"):
                std = 0.1
            if name.endswith(("o_proj.weight", "w2", "down_proj.weight")):
                std /= (2 * self.c.layers) ** 0.5
            if name.endswith(".gate.weight"):
                std *= 0.5
            with torch.no_grad():
                value.normal_(0.0, std, generator=generator)

    def forward(self, ids):
        """ids [B, T] -> logits [B, T, V], router logits [L][B*T, E], chosen [L][B*T, k] (both
        empty in a dense model)."""
        x = self.embed_tokens(ids)
        if self.c.positions == "absolute":
            x = x + sinusoids(self.c, ids.shape[1])
        cos, sin = rope_tables(self.c, ids.shape[1])
        routing, choice = [], []
        for layer in self.layers:
            x, logits, chosen = layer(x, cos, sin)
            if logits is not None:
                routing.append(logits)
                choice.append(chosen)
        x = self.norm(x)
        head = F.linear(x, self.embed_tokens.weight) if self.c.tied else self.lm_head(x)
        return head, routing, choice


def balance_loss(routing, experts, top_k, scope):
    """E * sum_e f_e P_e, f_e the mean number of the k choices that fall on e, P_e the mean gate
    probability: the value of Hugging Face's load_balancing_loss_func (k when perfectly even).

    `scope` "layer" takes it per layer and averages, so that each layer is balanced by itself;
    "model" takes all layers' logits as one set, as Hugging Face does, where one layer's imbalance
    can hide behind another's."""
    groups = routing if scope == "layer" else [torch.cat(routing)]
    total = 0.0
    for logits in groups:
        p = logits.softmax(-1)
        chosen = torch.topk(p, top_k, -1).indices
        f = torch.bincount(chosen.reshape(-1), minlength=experts).float() / logits.shape[0]
        total = total + experts * (f * p.mean(0)).sum()
    return total / len(groups)


def hf_config(c):
    j = {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "attention_dropout": 0.0,
        "bos_token_id": 0, "eos_token_id": 0, "head_dim": c.head_dim, "hidden_act": "silu",
        "hidden_size": c.hidden, "initializer_range": 0.02, "intermediate_size": c.inner,
        "max_position_embeddings": c.max_positions, "num_attention_heads": c.heads,
        "num_experts_per_tok": c.top_k, "num_hidden_layers": c.layers,
        "num_key_value_heads": c.kv_heads, "num_local_experts": c.experts,
        "output_router_logits": False, "rms_norm_eps": c.eps, "rope_theta": c.rope_theta,
        "router_aux_loss_coef": c.aux, "router_jitter_noise": 0.0, "sliding_window": None,
        "tie_word_embeddings": c.tied, "torch_dtype": "bfloat16", "use_cache": True,
        "vocab_size": c.vocab,
    }
    if not c.lab:
        return j
    keep = ("bos_token_id", "eos_token_id", "head_dim", "hidden_size", "intermediate_size",
            "max_position_embeddings", "num_attention_heads", "num_experts_per_tok",
            "num_hidden_layers", "num_key_value_heads", "num_local_experts", "rms_norm_eps",
            "rope_theta", "router_aux_loss_coef", "tie_word_embeddings", "torch_dtype",
            "vocab_size")
    j = {"model_type": "switchyard_lab", "position_embedding": c.positions,
         **{key: j[key] for key in keep}}
    if c.positions == "absolute":
        j["position_gain"] = c.position_gain
    if c.experts == 0:
        for key in ("num_experts_per_tok", "num_local_experts", "router_aux_loss_coef"):
            del j[key]
    return j


def export(model, folder, tokenizer):
    """Writes config.json, model.safetensors (BF16, Mixtral's per-expert names), tokenizer.json."""
    c, tensors = model.c, {}
    for name, value in model.state_dict().items():
        value = value.detach().to(torch.bfloat16)
        if name.endswith("w13"):
            for e in range(c.experts):
                base = f"model.{name[:-4]}.experts.{e}"
                tensors[f"{base}.w1.weight"] = value[e, :c.inner].clone()
                tensors[f"{base}.w3.weight"] = value[e, c.inner:].clone()
        elif name.endswith(".w2"):
            for e in range(c.experts):
                tensors[f"model.{name[:-3]}.experts.{e}.w2.weight"] = value[e].clone()
        else:
            tensors[name if name.startswith("lm_head") else f"model.{name}"] = value.contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(sorted(tensors.items())), folder / "model.safetensors", {"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    (folder / "config.json").write_text(json.dumps(hf_config(c), indent=2, sort_keys=True) + "\n")
    (folder / "tokenizer.json").write_bytes(Path(tokenizer).read_bytes())


def load(folder):
    """A model in FP32 from an exported folder."""
    j = json.loads((Path(folder) / "config.json").read_text())
    c = Config(j["vocab_size"], j["hidden_size"], j["num_hidden_layers"], j["num_attention_heads"],
               j["num_key_value_heads"], j["head_dim"], j["intermediate_size"],
               j.get("num_local_experts", 0), j.get("num_experts_per_tok", 0), j["rope_theta"],
               j["rms_norm_eps"], j["max_position_embeddings"], j["tie_word_embeddings"],
               j.get("position_embedding", "rope"), j.get("position_gain", 1.0),
               j.get("router_aux_loss_coef", 0.0))
    model = Mixtral(c)
    tensors = {k: v.float() for k, v in load_file(Path(folder) / "model.safetensors").items()}
    state = {}
    for name in model.state_dict():
        if name.endswith((".w13", ".w2")):
            base = f"model.{name.rsplit('.', 1)[0]}.experts"
            if name.endswith(".w2"):
                parts = [tensors[f"{base}.{e}.w2.weight"] for e in range(c.experts)]
            else:
                parts = [torch.cat((tensors[f"{base}.{e}.w1.weight"],
                                    tensors[f"{base}.{e}.w3.weight"])) for e in range(c.experts)]
            state[name] = torch.stack(parts)
        else:
            state[name] = tensors[name if name.startswith("lm_head") else f"model.{name}"]
    model.load_state_dict(state)
    return model
