# SPDX-License-Identifier: Apache-2.0
"""Makes scenarios/routing from published routing data (sources: scenarios/routing/PROVENANCE.md).

usage: python3 make_routing_excerpts.py DATA OUT

DATA has deepseek_v2_lite_esft/law_tokens.csv, summary_tokens.csv and expert_counts_full.csv, gpt_oss_20b/*_tokens.csv,
granite_3_0_1b_a400m/sglang_routing_trace.jsonl, olmoe_mixtral_counts/expert_counts.csv and
router_entropy_large_models.csv.
"""
import csv
import json
import pathlib
import sys
from collections import defaultdict

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-"


def excerpt(path, model, experts, top_k, layers, order, sequences):
    """sequences: (domain, prompt length, first position, rows [[expert, …] per layer])."""
    with open(path, "w", encoding="ascii", newline="\n") as out:
        out.write(f"# model {model}\n# experts {experts}\n# top_k {top_k}\n")
        out.write(f"# layers {layers[0]} {len(layers)}\n# order {order}\n")
        for domain, prompt, first, rows in sequences:
            out.write(f"# sequence {domain} {prompt} {first}\n")
            for row in rows:
                out.write("".join(DIGITS[e] for layer in row for e in layer) + "\n")


def gpt_oss(data, out):
    sequences = []
    for domain, name in (("instructions", "tulu3_if"), ("chemistry", "hs_chemistry")):
        rows = defaultdict(dict)
        for r in csv.DictReader(open(data / "gpt_oss_20b" / f"{name}_tokens.csv")):
            rows[int(r["token_pos"])][int(r["layer"])] = [int(r[f"e{j}"]) for j in range(4)]
        first = min(rows)
        sequences.append((domain, first, first,
                          [[rows[t][l] for l in range(24)] for t in sorted(rows)]))
    excerpt(out / "gpt_oss_20b.txt", "gpt_oss_20b", 32, 4, range(24), "probability", sequences)


def deepseek(data, out):
    rows = defaultdict(lambda: defaultdict(dict))
    for r in csv.DictReader(open(data / "deepseek_v2_lite_esft" / "law_tokens.csv")):
        ids = [(-float(r[f"w{j}"]), j, int(r[f"e{j}"])) for j in range(6)]
        rows[int(r["request"])][int(r["token"])][int(r["layer"])] = [e for _, _, e in sorted(ids)]
    sequences = [("law", len(q), 0, [[q[t][l] for l in range(1, 27)] for t in sorted(q)])
                 for _, q in sorted(rows.items())]
    excerpt(out / "deepseek_v2_lite.txt", "deepseek_v2_lite", 64, 6, range(1, 27), "probability",
            sequences)


def deepseek_summary(data, out):
    """As many tokens of one summary as the first two requests of law have; no weights there."""
    rows = defaultdict(dict)
    for r in csv.DictReader(open(data / "deepseek_v2_lite_esft" / "summary_tokens.csv")):
        if r["request"] == "2" and int(r["token"]) < 449:
            rows[int(r["token"])][int(r["layer"])] = [int(r[f"e{j}"]) for j in range(6)]
    excerpt(out / "deepseek_v2_lite_summary.txt", "deepseek_v2_lite", 64, 6, range(1, 27), "unstated",
            [("summary", len(rows), 0, [[rows[t][l] for l in range(1, 27)] for t in sorted(rows)])])


def granite(data, out):
    rows, prompts = defaultdict(list), defaultdict(int)
    for line in open(data / "granite_3_0_1b_a400m" / "sglang_routing_trace.jsonl"):
        r = json.loads(line)
        if "routing" in r:
            rows[r["request_id"]].append([l["expert_ids"] for l in r["routing"]])
            prompts[r["request_id"]] += r["phase"] == "prefill"
    sequences = [("arbitrary-ids", prompts[q], 0, rows[q]) for q in sorted(rows)]
    excerpt(out / "granite_3_0_1b.txt", "granite_3_0_1b_a400m", 32, 8, range(24), "unstated",
            sequences)


def counts(data, out):
    loads = defaultdict(lambda: defaultdict(int))
    name = data / "deepseek_v2_lite_esft" / "expert_counts_full.csv"
    for r in csv.DictReader(open(name)):
        loads["deepseek_v2_lite", 64, 6, r["task"], int(r["layer"])][int(r["expert"])] = int(r["count"])
    kinds = {"olmoe": ("olmoe_1b_7b", 64, 8), "mistral": ("mixtral_8x7b", 8, 2)}
    for r in csv.DictReader(open(data / "olmoe_mixtral_counts" / "expert_counts.csv")):
        if r["model"] in kinds and r["k"] != "top1" and r["corpus"] != "tulu":
            model, experts, k = kinds[r["model"]]
            assert int(r["k"]) == k
            loads[model, experts, k, r["corpus"], int(r["layer"])][int(r["expert"])] = int(r["count"])
    with open(out / "expert_counts.csv", "w", newline="\n") as f:
        f.write("model,experts,top_k,text,layer,counts\n")
        for (model, experts, k, text, layer), load in sorted(loads.items()):
            f.write(f"{model},{experts},{k},{text},{layer}," +
                    " ".join(str(load[e]) for e in range(experts)) + "\n")


def entropies(data, out):
    shapes = {"gptoss-120b": ("gpt_oss_120b", 128, 4), "deepseek-r1": ("deepseek_r1", 256, 8),
              "deepseek-v31": ("deepseek_v3_1", 256, 8), "glm5": ("glm_5", 256, 8),
              "qwen-397b": ("qwen_397b", 512, 10)}
    values = defaultdict(list)
    for r in csv.DictReader(open(data / "router_entropy_large_models.csv")):
        values[r["model"], int(r["layer"])].append((int(r["n_prompt_tokens"]), float(r["mean_entropy"])))
    with open(out / "gate_entropy.csv", "w", newline="\n") as f:
        f.write("model,experts,top_k,layer,tokens,entropy\n")
        for (name, layer), v in sorted(values.items()):
            model, experts, k = shapes[name]
            tokens = sum(n for n, _ in v)
            f.write(f"{model},{experts},{k},{layer},{tokens},{sum(n * h for n, h in v) / tokens:.5f}\n")


if __name__ == "__main__":
    source, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    for make in (gpt_oss, deepseek, deepseek_summary, granite, counts, entropies):
        make(source, target)
