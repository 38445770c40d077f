#!/bin/sh
# Builds the stress program under ThreadSanitizer and under AddressSanitizer with UBSan, and runs
# both. Usage: tests/stress/run.sh [build folder]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=${1:-"$here/../../build"}
export TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1"
export ASAN_OPTIONS="detect_leaks=1 detect_stack_use_after_return=1"
export UBSAN_OPTIONS="print_stacktrace=1"
for sanitizer in thread address,undefined; do
  folder="$build/stress-$sanitizer"
  cmake -S "$here" -B "$folder" -DSANITIZER="$sanitizer" >/dev/null
  cmake --build "$folder" --target stress --parallel 2
  echo "stress under -fsanitize=$sanitizer"
  "$folder/stress"
done
