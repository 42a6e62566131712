#!/usr/bin/env bash
# Fails when clang-format would change a file.
set -euo pipefail
cd "$(dirname "$0")/.."
git ls-files '*.cpp' '*.h' '*.cu' '*.cuh' | xargs clang-format-16 --dry-run --Werror
