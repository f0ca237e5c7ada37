#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# changed_goldens_test.sh SCRIPT: scripts/changed_goldens in a repository made for it.
set -euo pipefail
script=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
unset GIT_DIR GIT_WORK_TREE
fail() { echo "failed: $*" >&2; exit 1; }
commit() { git add -A && git commit -q -m "$1"; }
# expect CODE TEXT…: the exit code, and texts that its output must have.
expect() {
  local code=0 out wanted=$1
  out=$(bash "$script") || code=$?
  [ "$code" -eq "$wanted" ] || fail "exit $code, not $wanted: $out"
  shift
  for text in "$@"; do grep -qF -- "$text" <<<"$out" || fail "\"$text\" is not in: $out"; done
}

bash "$script" | grep -q "no git repository" || fail "outside a repository"
git init -q -b main .
mkdir -p tests/gui/golden src
echo 1 >tests/gui/golden/light.png
commit first
expect 0 "only one commit"
echo 1 >src/a && commit "code alone"
expect 0 "no golden changed"
echo 2 >tests/gui/golden/light.png
expect 0 "light.png, not committed"
commit "$(printf 'Wider gutter\n\ngolden: the gutter is wider')"
expect 0 "golden changed: tests/gui/golden/light.png" "golden: the gutter is wider"
git checkout -q -b work
echo 3 >tests/gui/golden/light.png && commit "a change that says nothing"
echo 2 >src/a && commit "code on top"
expect 1 "light.png" "does not say"
git reset -q --hard main && echo "t" >tests/gui/golden/table.txt && commit "a text golden"
expect 0 "table.txt"
expect 0 "a text golden"
bash "$script" no-such-commit 2>/dev/null && fail "an unknown base is accepted"
echo "changed goldens are listed"
