#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a GPU has to confirm, packed here and run there.
#   kernels/device_check.sh pack OUT.tar.gz    builds switchyard-device (preset cuda), collects the libraries that
#                                              a bare machine lacks and the shipped checkpoint; at most 40 MiB
#   device_check.sh run [DIR] [--small] [--device NAME --hbm "4.8 TB/s" --peak "989 TFLOP/s"]
#                                              on the GPU machine, in the unpacked folder; under 8 minutes. Writes
#                                              DIR/results: device.json, calibration.toml, and, where the tools are
#                                              there, memcheck.txt, racecheck.txt and torch.json. --small: few shapes, toy layers.
#                                              The other three are of the calibration; without them an H200's
# Exit: 0 all agreed · 1 something did not · 2 a mistake in the arguments or the folder · 3 no GPU ·
# 4 nothing disagreed, but a part did not finish in its time; a line says which.
# SWITCHYARD_CHECK_SECONDS (480, of everything) and SWITCHYARD_TOOL_SECONDS (90, of each tool of
# compute-sanitizer) change the limits.
set -euo pipefail
export LC_ALL=C
usage() { sed -n '3,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
LIMIT_MIB=40
LIMIT_SECONDS=${SWITCHYARD_CHECK_SECONDS:-480}
TOOL_SECONDS=${SWITCHYARD_TOOL_SECONDS:-90}

pack() {
  local out=${1:?} root
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  dir=$(mktemp -d)
  trap 'rm -rf "$dir"' EXIT
  (cd "$root" && PATH=$PATH:/usr/local/cuda/bin && cmake --preset cuda >/dev/null &&
    cmake --build --preset cuda --target switchyard-device >/dev/null)
  mkdir -p "$dir/device_check"/{bin,lib,checkpoint}
  cp "$(find "$root/build/cuda" -name switchyard-device -type f | head -n 1)" "$dir/device_check/bin/"
  strip "$dir/device_check/bin/switchyard-device"
  # The C library and the loader are everywhere; the rest travels.
  ldd "$dir/device_check/bin/switchyard-device" | awk '$3 ~ /^\// {print $3}' |
    grep -vE '/(libc|libm|libdl|libpthread|librt)\.so' | xargs -r -I{} cp -L {} "$dir/device_check/lib/"
  cp "$root"/scenarios/checkpoints/sy-16x2/{config.json,model.safetensors,tokenizer.json} "$dir/device_check/checkpoint/"
  cp "${BASH_SOURCE[0]}" "$dir/device_check/"
  tar -C "$dir" -czf "$out" device_check
  local mib=$((($(stat -c %s "$out") + 1048575) / 1048576))
  if [ $mib -gt $LIMIT_MIB ]; then
    rm -f "$out"
    echo "the pack has $mib MiB, at most $LIMIT_MIB are allowed" >&2
    exit 1
  fi
  echo "$out: $mib MiB"
}

# NAME STATUS SECONDS: what ended how; sets run's code. A part out of time (124) is no disagreement.
ended() {
  case $2 in
    0) ;;
    124)
      echo "$1: not finished after $3 s"
      [ $code -ne 0 ] || code=4
      ;;
    *)
      echo "$1: failed (status $2)"
      code=1
      ;;
  esac
}

run() {
  local dir=. small=() of=() tool
  if [ $# -gt 0 ] && [ "${1#--}" = "$1" ]; then dir=$1; shift; fi
  while [ $# -gt 0 ]; do
    case $1 in
      --small) small=(--small); shift ;;
      --device | --hbm | --peak) [ $# -ge 2 ] || usage; of=("${of[@]}" "$1" "$2"); shift 2 ;;
      *) echo "unknown: $1" >&2; usage ;;
    esac
  done
  cd "$dir"
  [ -x bin/switchyard-device ] || { echo "no bin/switchyard-device in $dir; unpack what pack made" >&2; exit 2; }
  rm -rf results
  mkdir results
  export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  local start=$SECONDS code=0 rc=0 left
  timeout $LIMIT_SECONDS bin/switchyard-device --model checkpoint --out results/device.json \
    --calibration results/calibration.toml "${small[@]}" "${of[@]}" || rc=$?
  case $rc in 2 | 3) exit $rc ;; esac
  ended switchyard-device $rc $LIMIT_SECONDS
  # Memory errors and races in shared memory, of small shapes; the tool comes with CUDA.
  for tool in memcheck racecheck; do
    command -v compute-sanitizer >/dev/null || continue
    left=$((LIMIT_SECONDS - (SECONDS - start)))
    if [ $left -lt $TOOL_SECONDS ]; then
      echo "$tool: not begun, $left s are left"
      [ $code -ne 0 ] || code=4
      continue
    fi
    rc=0
    SWITCHYARD_SANITIZE=1 timeout $TOOL_SECONDS compute-sanitizer --tool $tool --error-exitcode 9 bin/switchyard-device \
      --small >results/$tool.txt 2>&1 || rc=$?
    tail -n 1 results/$tool.txt
    ended $tool $rc $TOOL_SECONDS
  done
  left=$((LIMIT_SECONDS - (SECONDS - start)))
  if [ $left -gt 60 ] && [ ${#small[@]} -eq 0 ] && python3 -c 'import torch' 2>/dev/null; then
    rc=0
    timeout 60 python3 - >results/torch.json <<'PYTHON' || rc=$?
# The same layers as plain PyTorch: for each expert with rows, two products, SwiGLU, one product.
import json, statistics, time, torch
out = {"torch": torch.__version__, "device": torch.cuda.get_device_name(0), "layers": {}}
for name, h, i, e, k in (("Mixtral-8x7B", 4096, 14336, 8, 2), ("Qwen3-30B-A3B", 2048, 768, 128, 8)):
    w13 = torch.randn(e, 2 * i, h, device="cuda", dtype=torch.bfloat16) / 64
    w2 = torch.randn(e, h, i, device="cuda", dtype=torch.bfloat16) / 64
    rows = []
    for t in (1, 8, 64, 512, 4096):
        torch.manual_seed(t)
        x = torch.randn(t, h, device="cuda", dtype=torch.bfloat16)
        chosen = torch.stack([torch.randperm(e)[:k] for _ in range(t)])
        lists = [(chosen == n).any(1).nonzero().flatten().cuda() for n in range(e)]
        def layer():
            y = torch.zeros(t, h, device="cuda", dtype=torch.float32)
            for n, index in enumerate(lists):
                if index.numel():
                    g, u = (x[index] @ w13[n].T).chunk(2, -1)
                    y.index_add_(0, index, ((torch.nn.functional.silu(g) * u) @ w2[n].T).float())
            return y
        layer()
        times = []
        for _ in range(5):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            layer()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - begin) * 1e6)
        rows.append({"tokens": t, "loop over experts [us]": statistics.median(times)})
    out["layers"][name] = rows
    del w13, w2
print(json.dumps(out, indent=2))
PYTHON
    ended PyTorch $rc 60
  fi
  echo "results in $dir/results ($((SECONDS - start)) s)"
  exit $code
}

case ${1:-} in
  pack) [ $# -eq 2 ] || usage; pack "$2" ;;
  run) shift; run "$@" ;;
  *) usage ;;
esac
