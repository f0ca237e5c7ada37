#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiler launcher: runs the CUDA compiler and keeps what ptxas said about the kernels beside the
# object, as OBJECT.ptxas, for check_registers.sh. Warnings and errors are shown as usual.
set -u
object=
previous=
for argument in "$@"; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done
log=$(mktemp)
"$@" >"$log" 2>&1
code=$?
grep -vE '^ptxas info|bytes stack frame|^ *$' "$log" >&2
if [ $code -eq 0 ] && [ -n "$object" ] && grep -q 'Compiling entry function' "$log"; then
  cp "$log" "$object.ptxas"
fi
rm -f "$log"
exit $code
