#!/usr/bin/env bash
# Format, and clang-tidy over the sources (or over the files given).
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/check_format.sh
# clang-tidy reads clang's own compile commands; g++'s may hold flags it does not know.
cmake --preset debug -B build/clang -DCMAKE_CXX_COMPILER=clang++-16 -DBHYT_BENCH=OFF -DBHYT_QUICK_BUILD=OFF >/dev/null
cmake --build build/clang --target bhyt_version >/dev/null
if (( $# )); then files=("$@"); else mapfile -t files < <(git ls-files 'src/*.cpp'); fi
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 4 clang-tidy-16 -p build/clang --quiet --warnings-as-errors='*'
