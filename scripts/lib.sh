# SPDX-License-Identifier: Apache-2.0
# Shared by scripts/demo and scripts/test: install what is missing, configure, build.
# shellcheck shell=bash
set -euo pipefail
# ccache takes the locale into its keys: with a login's usual one, what was built by hand is not built again.
unset LC_ALL LC_CTYPE LC_MESSAGES
export LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
JOBS=${SWITCHYARD_JOBS:-$(nproc)}

say() { printf '== %s\n' "$*"; }

# The Debian packages of scripts/packages.txt (plus the arguments) that are not installed get installed.
install_packages() {
  local wanted missing=() p
  wanted=$(awk '!/^#/ && NF {print $1}' scripts/packages.txt)
  for p in $wanted "$@"; do
    dpkg-query -W -f='${db:Status-Status}\n' "$p" 2>/dev/null | grep -qx installed || missing+=("$p")
  done
  # Renamed packages answer under their new name.
  [ ${#missing[@]} -eq 0 ] && return 0
  say "installing ${missing[*]}"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "these Debian packages are missing and this is not root: ${missing[*]}" >&2; exit 3; }
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# build PRESET [target…]
build() {
  local preset=$1
  shift
  cmake --preset "$preset" >"build-$preset.log.tmp" 2>&1 || { cat "build-$preset.log.tmp"; rm -f "build-$preset.log.tmp"; exit 1; }
  rm -f "build-$preset.log.tmp"
  cmake --build --preset "$preset" -j "$JOBS" ${1:+--target "$@"} | { grep -vE '^\[[0-9]+/[0-9]+\] ' || true; }
}
