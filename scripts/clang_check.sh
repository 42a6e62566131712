#!/usr/bin/env bash
# clang 16 reads every source without a warning; `clang_check.sh all` the tests too, which takes longer.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/clang-release
cmake --preset release -B $build -DCMAKE_CXX_COMPILER=clang++-16 -DBHYT_WERROR=ON -DBHYT_BENCH=OFF -DBHYT_QUICK_BUILD=OFF >/dev/null
# The header with the commit is made by the build.
cmake --build $build --target bhyt_version >/dev/null
# One compile command per line, JSON's escapes undone; ccache has nothing to keep from reading.
sed -n 's/^  "command": "\(.*\)",\?$/\1/p' $build/compile_commands.json | grep -v -- "$build/generated/" |
  if [[ ${1:-} == all ]]; then cat; else grep -v -- "/tests/[a-z_/]*\.cpp"; fi | sed 's/\\\(.\)/\1/g; s/^[^ ]*ccache //; s/$/ -fsyntax-only/' |
  xargs -d '\n' -P "$(nproc)" -n 1 bash -c
