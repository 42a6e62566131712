#!/usr/bin/env bash
# Installs a build into a temporary prefix, then builds and runs an outside project against it, and the installed program.
# usage: check_install.sh BUILD_DIR
set -euo pipefail
# As GoogleTest's programs do: a file that is gone again only when all went well (scripts/test_summary.sh looks for it).
running=${TEST_PREMATURE_EXIT_FILE:-}
[[ -z $running ]] || : >"$running"
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" >/dev/null
"$work/prefix/bin/bhyt" --version
for file in share/doc/bhyt/README.md share/bhyt/configs/llama-1b-bhyt.yaml include/bhyt/model/model.h; do
  [[ -f $work/prefix/$file ]] || { echo "error: $file was not installed" >&2; exit 1; }
done
cmake -S "$root/tests/install" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build "$work/build"
"$work/build/consumer"
[[ -z $running ]] || rm "$running"
