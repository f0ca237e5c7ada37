#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Registers, stack, spills and static shared memory of every kernel, from what ptxas said when the
# preset cuda was built, against the kept table kernels/registers.txt. Any spill is an error. (A stack
# without spills: sine and cosine of large angles in double, in rotate_append.)
#   kernels/check_registers.sh build/cuda            compares; 1: they differ
#   kernels/check_registers.sh build/cuda --replace  keeps what was built
set -euo pipefail
export LC_ALL=C
build=${1:?usage: kernels/check_registers.sh BUILD [--replace]}
kept=$(dirname "${BASH_SOURCE[0]}")/registers.txt
now=$(mktemp)
trap 'rm -f "$now"' EXIT
mapfile -t logs < <(find "$build" -name '*.ptxas' | sort)
[ ${#logs[@]} -gt 0 ] || { echo "no *.ptxas below $build; build the preset cuda first" >&2; exit 2; }
version=$(PATH=$PATH:/usr/local/cuda/bin nvcc --version | sed -nE 's/.*release ([0-9.]+).*/\1/p')
{
  echo "# nvcc $version"
  echo "# kernel | architecture | registers | stack B | spilled B | static shared B"
  awk '
    /Compiling entry function/ { split($0, part, "\x27"); name = part[2]; arch = part[4]; stack = spill = 0 }
    /bytes stack frame/ { stack = $1; spill = $5 + $9 }
    /Used [0-9]+ registers/ {
      shared = 0
      if (match($0, /[0-9]+ bytes smem/)) shared = substr($0, RSTART, RLENGTH) + 0
      match($0, /Used [0-9]+/)
      print name, arch, substr($0, RSTART + 5, RLENGTH - 5), stack, spill, shared
    }' "${logs[@]}" | c++filt |
    sed -E 's/^void //; s/switchyard::(kernels|gpu):://g; s/\(anonymous namespace\):://g; s/\([^)]*\) sm_/ sm_/; s/ (sm_[^ ]+) ([0-9]+) ([0-9]+) ([0-9]+) ([0-9]+)$/ | \1 | \2 | \3 | \4 | \5/' |
    sort -u
} >"$now"
if [ "${2:-}" = --replace ]; then
  cp "$now" "$kept"
fi
failed=0
if grep -vE '^#|\| [0-9]+ \| 0 \| [0-9]+$' "$now"; then
  echo "these kernels spill registers" >&2
  failed=1
fi
if [ "$(head -n 1 "$kept")" != "# nvcc $version" ]; then
  echo "kernels/registers.txt is of another compiler ($(head -n 1 "$kept" | cut -c3-)); compared: spills only"
elif ! diff -u "$kept" "$now"; then
  echo "registers differ from kernels/registers.txt; if meant: kernels/check_registers.sh $build --replace" >&2
  failed=1
fi
[ $failed -eq 0 ] && echo "$(grep -vc '^#' "$now") kernels as in kernels/registers.txt, none spills"
exit $failed
