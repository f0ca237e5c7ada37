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
if [ -z "${REAL_WINDOW_SCREEN:-}" ]; then
  # -noreset: without it the server starts anew when its last client leaves, which the first short
  # xdotool may be, and cuts off what has just connected. -fbdir: the screen's pixels as a file,
  # without the mouse's arrow.
  REAL_WINDOW_SCREEN=$work/Xvfb_screen0 xvfb-run -a \
    -s "-screen 0 1280x800x24 -noreset -nocursor -fbdir $work" bash "$0" "$gui" "$write_demo_run"
  exit
fi
export HOME=$work/home XDG_CONFIG_HOME=$work/home/config XDG_RUNTIME_DIR=$work/runtime
mkdir -p "$HOME" "$XDG_CONFIG_HOME" "$XDG_RUNTIME_DIR"
chmod 700 "$XDG_RUNTIME_DIR"
cd "$work"
"$write_demo_run" a.h5 120
"$write_demo_run" b.h5 90
window=
log=
pid=
server=
for stat in /proc/[0-9]*/stat; do
  read -r process name _ parent _ 2>/dev/null <"$stat" || continue
  [ "$name" != "(Xvfb)" ] || [ "$parent" != "$PPID" ] || server=$process
done
[ -n "$server" ] || { echo "failed: the X server is no child of xvfb-run" >&2; exit 1; }
# What one state is waited for, in seconds; a loaded machine takes its time.
patience=120

# What there is, for who reads a failure.
state() {
  set +e
  echo "--- windows of the app:"
  for w in $(xdotool search --class switchyard-gui); do
    echo "$w \"$(xdotool getwindowname "$w" 2>&1)\"" \
      "$(xdotool getwindowgeometry "$w" 2>&1 | tr '\n' ' ')"
  done
  echo "--- processes:"
  ps -o pid,stat,etimes,time,args -p "$wm_pid${pid:+,$pid}" 2>&1
  echo "--- openbox:"
  cat "$work/openbox.log"
  echo "--- the app:"
  [ -z "$log" ] || cat "$log"
}
fail() { echo "failed: $*" >&2; state >&2; exit 1; }
# within_patience COMMAND…: repeats it until it succeeds; 1 when it never does.
within_patience() {
  local end=$((SECONDS + patience))
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.1
  done
}
ended() { ! kill -0 "$1" 2>/dev/null; }
picture() { md5sum <"$REAL_WINDOW_SCREEN"; }
# Title and header of the dock at the top left: "Run", or "Experts" where the run dock is hidden.
docks() { import -window root -crop 190x32+4+100 rgb:- | md5sum; }
# Nobody has an event left to answer: a program that waits for the processor is not asleep.
asleep() {
  local process state
  for process in "$pid" "$wm_pid" "$server"; do
    read -r _ _ state _ 2>/dev/null <"/proc/$process/stat" || return 1
    [ "$state" = S ] || return 1
  done
}
# The screen stays the same for a moment, and everybody sleeps.
quiet() {
  local before
  before=$(picture)
  for _ in 1 2 3 4 5; do
    asleep || return 1
    sleep 0.06
  done
  asleep && [ "$(picture)" = "$before" ]
}
settled() { within_patience quiet || fail "the screen never settles"; }
# Only a window manager states the number of desktops.
managed() { ended "$wm_pid" || xdotool get_num_desktops >/dev/null 2>&1; }
find_window() {
  window=$(xdotool search --onlyvisible --class switchyard-gui 2>/dev/null | tail -n 1) || true
  [ -n "$window" ] || ended "$pid"
}
placed() { [[ $(xdotool getwindowgeometry "$window" 2>&1) == *"Geometry: 1280x780"* ]]; }
docks_are() { [ "$(docks)" = "$1" ]; }
# The inner rectangle of the window, which is what the app saves.
inner() { xdotool getwindowgeometry "$window" 2>&1 | tail -n +2; }
inner_is() { [ "$(inner)" = "$1" ]; }
# start NAME RUN…: with a size and a place of the test's, or as the app has them: AS_SAVED=1 start …
start() {
  log=$work/$1.log
  shift
  window=
  "$gui" "$@" >"$log" 2>&1 &
  pid=$!
  within_patience find_window || fail "no window"
  [ -n "$window" ] || fail "the app ended before it had a window"
  if [ -n "${AS_SAVED:-}" ]; then
    xdotool windowfocus "$window" || true
  else
    xdotool windowsize "$window" 1280 780 windowmove "$window" 0 20 windowfocus "$window" || true
    within_patience placed || fail "the window has not the size that it was given"
  fi
  settled
}
differs_from() { [ "$(picture)" != "$1" ]; }
# changes WHAT COMMAND…: the command changes what is on the screen.
changes() {
  local what=$1 before
  shift
  before=$(picture)
  "$@"
  within_patience differs_from "$before" || fail "$what changed nothing on the screen"
  settled
}
quit() {
  xdotool key --clearmodifiers ctrl+q
  local code=0
  within_patience ended "$pid" || fail "Ctrl+Q does not end the app"
  wait "$pid" || code=$?
  [ "$code" -eq 0 ] || fail "exit code $code"
  # Known noise of Qt without a session; everything else is a fault.
  if grep -vE "propagateSizeHints|XDG_RUNTIME_DIR|Session DBus|session management" "$log"; then
    fail "unexpected output"
  fi
}

openbox >openbox.log 2>&1 &
wm_pid=$!
within_patience managed || fail "the window manager is not ready"
ended "$wm_pid" && fail "the window manager ended"
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
within_patience docks_are "$hidden" || fail "the second start does not have the layout of the first one"
# The last entry of the Window menu.
changes "the Window menu" xdotool key alt+w
changes "Restore default layout" xdotool key Up key Return
xdotool mousemove 700 440
settled
within_patience docks_are "$shipped" || fail "\"Restore default layout\" did not bring back the docks"
# Left where it has room, the window comes back to the same place, start after start.
xdotool windowsize "$window" 1100 700 windowmove "$window" 90 60
settled
left_at=$(inner)
quit
for again in third fourth fifth; do
  AS_SAVED=1 start "$again" a.h5
  within_patience inner_is "$left_at" || fail "the $again start is not where the window was left: $left_at"
  quit
done
echo "the window works with a real mouse and keyboard"
