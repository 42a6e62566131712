#!/usr/bin/env bash
# clang 16 reads every source without a warning, each file alone: one that needs an include of its neighbour's fails here.
# `clang_check.sh all` reads the tests too, which takes longer.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/clang-release
cmake --preset release -B $build -DCMAKE_CXX_COMPILER=clang++-16 -DBHYT_WERROR=ON -DBHYT_BENCH=OFF -DBHYT_QUICK_BUILD=OFF >/dev/null
# The header with the commit is made by the build.
cmake --build $build --target bhyt_version >/dev/null

# Reading these takes longest. A file that comes to some of them anyway, by whatever way, begins with just those, precompiled: that takes
# half the time, and hides no include that it lacks.
heavy=(nlohmann/json.hpp CLI/CLI.hpp gtest/gtest.h fmt/format.h functional memory)

# The files that include a header, themselves or through other headers of ours.
reaching() {
  local names=$1 seen="" found
  while [[ -n $names ]]; do
    found=$(grep -rlE "^#include [<\"]($names)[>\"]" --include='*.h' --include='*.cpp' src tests fuzz | sort | comm -13 <(echo "$seen") -)
    seen=$(sort -u <<<"$seen"$'\n'"$found")
    names=$(sed -n 's#^src/##; /\.h$/p' <<<"$found" | paste -sd'|')
  done
  echo "$seen"
}
declare -A kind made
for i in "${!heavy[@]}"; do
  while read -r file; do [[ -z $file ]] || kind[$file]+=$i; done < <(reaching "${heavy[i]}")
done

# precompiled KIND COMMAND: for the files of a kind, with the flags of one of them.
precompiled() {
  local header=$build/heavy-$1.h i
  for i in "${!heavy[@]}"; do [[ $1 != *$i* ]] || echo "#include <${heavy[i]}>"; done >"$header"
  bash -c "${2%% -o *} -fPIC -fpch-instantiate-templates -x c++-header $header -o $header.pch"
}

# One compile command per line, JSON's escapes undone; ccache has nothing to keep from reading.
sed -n 's/^  "command": "\(.*\)",\?$/\1/p' $build/compile_commands.json | grep -v -- "$build/generated/" |
  if [[ ${1:-} == all ]]; then cat; else grep -v -- " -c [^ ]*/tests/"; fi | sed 's/\\\(.\)/\1/g; s/^[^ ]*ccache //' |
  while read -r command; do
    file=${command##* -c "$PWD"/} file=${file%% *} of=${kind[$file]:-}
    if [[ -n $of && -z ${made[$of]:-} ]]; then precompiled "$of" "$command" && made[$of]=yes; fi
    [[ $file != src/* ]] || command+=" -Wcomma"  # statements, not comma operators
    echo "$command -fPIC -fsyntax-only${of:+ -include-pch $build/heavy-$of.h.pch}"
  done | xargs -d '\n' -P "$(nproc)" -n 1 bash -c
