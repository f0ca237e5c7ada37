#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# real_window_test.sh GUI WRITE_DEMO_RUN: the window on a virtual screen with a window manager, two
# runs on the command line, a real mouse and keyboard. Each gesture must change the screen; Ctrl+Q
# ends with 0 and an empty log; a second start has the layout that the first one left, and "Restore
# default layout" brings back the shipped one.
set -euo pipefail
gui=$1
write_demo_run=$2
missing=
for program in xvfb-run openbox xdotool import; do
  command -v "$program" >/dev/null || missing="$missing $program"
done
if [ -n "$missing" ]; then
  echo "failed: programs of this test are missing:$missing; scripts/packages.txt names their packages" >&2
  exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "${REAL_WINDOW_INSIDE:-}" ]; then
  export REAL_WINDOW_INSIDE=1
  exec xvfb-run -a -s "-screen 0 1280x800x24" bash "$0" "$gui" "$write_demo_run"
fi
export HOME=$work/home XDG_CONFIG_HOME=$work/home/config XDG_RUNTIME_DIR=$work/runtime
mkdir -p "$HOME" "$XDG_CONFIG_HOME" "$XDG_RUNTIME_DIR"
chmod 700 "$XDG_RUNTIME_DIR"
cd "$work"
"$write_demo_run" a.h5 120
"$write_demo_run" b.h5 90
openbox >openbox.log 2>&1 &
window=
log=

fail() { echo "failed: $*" >&2; [ -z "$log" ] || cat "$log" >&2; exit 1; }
picture() { import -window root rgb:- | md5sum; }
# Title and header of the dock at the top left: "Run", or "Experts" where the run dock is hidden.
docks() { import -window root -crop 190x32+4+100 rgb:- | md5sum; }
# Waits until the screen stays the same for a moment.
settled() {
  local now before=
  for _ in $(seq 100); do
    now=$(picture)
    [ "$now" != "$before" ] || return 0
    before=$now
    sleep 0.3
  done
  fail "the screen never settles"
}
start() {
  log=$work/$1.log
  shift
  "$gui" "$@" >"$log" 2>&1 &
  pid=$!
  for _ in $(seq 200); do
    window=$(xdotool search --onlyvisible --class switchyard-gui 2>/dev/null | tail -n 1) && [ -n "$window" ] && break
    sleep 0.1
  done
  [ -n "$window" ] || fail "no window"
  xdotool windowsize "$window" 1280 780 windowmove "$window" 0 20 windowfocus "$window" || true
  settled
}
# changes WHAT COMMAND…: the command changes what is on the screen.
changes() {
  local what=$1 before
  shift
  before=$(picture)
  "$@"
  for _ in $(seq 50); do
    [ "$(picture)" = "$before" ] || { settled; return 0; }
    sleep 0.2
  done
  fail "$what changed nothing on the screen"
}
quit() {
  xdotool key --clearmodifiers ctrl+q
  local code=0
  for _ in $(seq 100); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  wait "$pid" || code=$?
  [ "$code" -eq 0 ] || fail "exit code $code"
  # Known noise of Qt without a session; everything else is a fault.
  if grep -vE "propagateSizeHints|XDG_RUNTIME_DIR|Session DBus|session management" "$log"; then
    fail "unexpected output"
  fi
}

start first a.h5 b.h5
xdotool mousemove 700 300
settled
# The second run is there: X makes it A, and back. (With one run the key does nothing.)
changes "X, which swaps A and B," xdotool key x
changes "X once more" xdotool key x
changes "the wheel" xdotool click 4
changes "a click in the heat map" xdotool mousemove 640 240 click 1
changes "the key W" xdotool key w
changes "a drag" bash -c "xdotool mousemove 560 250 mousedown 1 mousemove 620 250 mousemove 720 252 mouseup 1"
changes "Escape on the menu" xdotool key Escape
changes "the key ?" xdotool key question
changes "Escape on the keys" xdotool key Escape
xdotool mousemove 700 440
settled
shipped=$(docks)
changes "Ctrl+1" xdotool key ctrl+1
hidden=$(docks)
[ "$hidden" != "$shipped" ] || fail "Ctrl+1 left the docks as they were"
quit
grep -q '^layout=' "$XDG_CONFIG_HOME/switchyard/switchyard-gui.conf" || fail "no layout was saved"
start second a.h5 b.h5
xdotool mousemove 700 440
settled
# The first start hid the run dock, so it is hidden now.
[ "$(docks)" = "$hidden" ] || fail "the second start does not have the layout of the first one"
# The last entry of the Window menu.
changes "the Window menu" xdotool key alt+w
changes "Restore default layout" xdotool key Up key Return
xdotool mousemove 700 440
settled
[ "$(docks)" = "$shipped" ] || fail "\"Restore default layout\" did not bring back the docks"
quit
echo "the window works with a real mouse and keyboard"
