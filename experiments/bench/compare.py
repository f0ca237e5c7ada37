#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times Switchyard against llama.cpp on the synthetic model of synthetic.py: same weights, dtype,
threads and tokens, in turns, one warm-up and then `--runs` runs of which the medians are compared.
Each engine reads its file from disk as it always does: both leave the page cache first.

    compare.py MODELS --runner build/dev/tests/bench/engine_runner --dtype bf16 -o RESULT.json

llama.cpp comes from llama-cpp-python built from source (-march=native); its system information and
every flag are stored with the results. Not part of the build or of CI.
"""
import argparse
import ctypes
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time


def serve_llama(path, threads):
    """The protocol of engine_runner, over llama.cpp."""
    import llama_cpp as llama
    import numpy as np

    silent = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(silent, ctypes.c_void_p(0))
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 2048, 2048, 512
    params.n_threads = params.n_threads_batch = threads
    context = llama.llama_init_from_model(model, params)
    vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    flags = {"n_batch": params.n_batch, "n_ubatch": params.n_ubatch, "type_k": params.type_k,
             "type_v": params.type_v, "flash_attn_type": params.flash_attn_type}
    print(f"llama-cpp-python {llama.__version__}; "
          f"{llama.llama_print_system_info().decode().strip()}; {flags}", flush=True)
    for line in sys.stdin:
        verb, *words = line.split()
        tokens = (llama.llama_token * len(words))(*map(int, words))
        if verb == "prefill":
            llama.llama_memory_clear(llama.llama_get_memory(context), True)
        width = len(tokens) if verb == "prefill" else 1
        start = time.perf_counter()
        for i in range(0, len(tokens), width):
            part = (llama.llama_token * width).from_buffer(tokens, 4 * i)
            if llama.llama_decode(context, llama.llama_batch_get_one(part, width)) != 0:
                sys.exit("llama_decode failed")
            llama.llama_synchronize(context)
        seconds = time.perf_counter() - start
        logits = np.ctypeslib.as_array(llama.llama_get_logits_ith(context, -1), (vocab,))
        print(f"{seconds:.9f} {logits.argmax()} {logits.max():.6f}", flush=True)


class Server:
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        self.name = self.process.stdout.readline().strip()

    def run(self, verb, tokens):
        self.process.stdin.write(verb + " " + " ".join(map(str, tokens)) + "\n")
        self.process.stdin.flush()
        seconds, token, logit = self.process.stdout.readline().split()
        time.sleep(0.1)  # its threads stop looking for work
        return float(seconds), int(token), float(logit)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def forget(path):
    """Drops a file from the page cache: how it comes back (in huge pages or not) is its reader's."""
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def measure(args, threads):
    import numpy as np

    forget(args.models / args.dtype / "model.safetensors")
    forget(args.models / f"{args.dtype}.gguf")
    engines = {
        "switchyard": Server([args.runner, str(args.models / args.dtype), str(threads)]),
        "llama.cpp": Server([sys.executable, __file__, "--serve-llama",
                             str(args.models / f"{args.dtype}.gguf"), str(threads)]),
    }
    tokens = np.random.Generator(np.random.PCG64(7)).integers(
        0, 16384, args.prompt + args.decode).tolist()
    seconds = {name: {"prefill": [], "decode": []} for name in engines}
    last = {}
    for run in range(args.runs + 1):
        order = list(engines) if run % 2 == 0 else list(engines)[::-1]
        for verb, part in (("prefill", tokens[:args.prompt]), ("decode", tokens[args.prompt:])):
            for name in order:
                taken, token, logit = engines[name].run(verb, part)
                last[name, verb] = (token, logit)
                if run > 0:
                    seconds[name][verb].append(taken)
    out = {"threads": threads, "engines": {name: e.name for name, e in engines.items()}}
    for verb, count in (("prefill", args.prompt), ("decode", args.decode)):
        rates = {name: [count / s for s in seconds[name][verb]] for name in engines}
        out[verb] = {
            "tokens": count,
            "tokens_per_second": {n: [round(r, 2) for r in rates[n]] for n in rates},
            "median": {n: round(statistics.median(rates[n]), 2) for n in rates},
            "best": {n: round(max(rates[n]), 2) for n in rates},
            "ratio_of_medians": round(statistics.median(rates["switchyard"]) /
                                      statistics.median(rates["llama.cpp"]), 3),
            "ratio_of_bests": round(max(rates["switchyard"]) / max(rates["llama.cpp"]), 3),
            "last_token_and_logit": {n: last[n, verb] for n in engines},
        }
    for engine in engines.values():
        engine.close()
    return out


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main():
    if len(sys.argv) > 1 and sys.argv[1] == "--serve-llama":
        serve_llama(sys.argv[2], int(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=pathlib.Path, help="folder that synthetic.py filled")
    parser.add_argument("--runner", required=True)
    parser.add_argument("--dtype", choices=("bf16", "f32"), required=True)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    args = parser.parse_args()
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "kernel": platform.release(),
                    "load_average_at_start": os.getloadavg()},
        "dtype": args.dtype,
        "runs": args.runs,
        "results": [measure(args, threads) for threads in args.threads],
    }
    result["machine"]["load_average_at_end"] = os.getloadavg()
    temporary = args.output.with_suffix(".tmp")
    temporary.write_text(json.dumps(result, indent=1) + "\n")
    temporary.rename(args.output)
    for r in result["results"]:
        for verb in ("prefill", "decode"):
            print(f"{args.dtype} {r['threads']} threads {verb}: {r[verb]['median']} tokens/s, "
                  f"ratio {r[verb]['ratio_of_medians']} (of bests {r[verb]['ratio_of_bests']})")


if __name__ == "__main__":
    main()
