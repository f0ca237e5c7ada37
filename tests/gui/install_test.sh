#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What cmake --install puts somewhere finds its own scenarios and simulates one of them.
# install_test.sh CMAKE BUILD_FOLDER
set -euo pipefail
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
"$1" --install "$2" --prefix "$prefix" > "$prefix/log" || { cat "$prefix/log"; exit 1; }
unset SWITCHYARD_SCENARIOS SWITCHYARD_CLI
for file in bin/switchyard bin/switchyard-gui share/applications/switchyard-gui.desktop \
    share/icons/hicolor/scalable/apps/switchyard.svg; do
  [ -f "$prefix/$file" ] || { echo "$file is not installed"; exit 1; }
done
grep -qx 'MimeType=application/x-hdf;application/x-hdf5;' \
  "$prefix/share/applications/switchyard-gui.desktop" || { echo "no type of run files"; exit 1; }
cd "$prefix"
bin/switchyard doctor > doctor || true
grep -q "in $prefix/share/switchyard/scenarios" doctor || { cat doctor; exit 1; }
bin/switchyard sim share/switchyard/scenarios/overloaded_expert.toml \
  --set workload.steps=10 --set workload.warmup_steps=2 --quiet -o run.h5 > summary
bin/switchyard-gui --render picture.png --size 1280x800 run.h5
[ -s picture.png ]
