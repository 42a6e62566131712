#!/usr/bin/env bash
# clang 16 without a warning: the program is built (the optimizer warns too), the tests are only read.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/clang-release
cmake --preset release -B $build -DCMAKE_CXX_COMPILER=clang++-16 -DBHYT_WERROR=ON -DBHYT_BENCH=OFF >/dev/null
cmake --build $build -j "$(nproc)" --target bhyt
# One compile command per line, JSON's escapes undone; ccache has nothing to keep from reading.
sed -n 's/^  "command": "\(.*\)",\?$/\1/p' $build/compile_commands.json | grep -- '/tests/' | sed 's/\\\(.\)/\1/g; s/^[^ ]*ccache //; s/$/ -fsyntax-only/' |
  xargs -d '\n' -P "$(nproc)" -n 1 bash -c
