#!/usr/bin/env bash
# Installs the Debian packages that a goal needs; does nothing when they are all there.
# usage: install_deps.sh [build|test|lint]...     (test and lint include build)
set -euo pipefail

packages=(g++ make cmake ninja-build ccache pkg-config git ca-certificates
  libfmt-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev zlib1g-dev libzstd-dev libgtest-dev libbenchmark-dev)
# The matrix library behind cpu::gemm (cmake/gemm_library.cmake).
case "$(uname -m)" in
  x86_64) packages+=(libdnnl-dev) ;;
  *) packages+=(libblis-openmp-dev) ;;
esac
for goal in "$@"; do
  case "$goal" in
    build) ;;
    test) packages+=(clang-16 libomp-16-dev libclang-rt-16-dev clang-format-16) ;;
    lint) packages+=(clang-16 libomp-16-dev clang-format-16 clang-tidy-16) ;;
    *) echo "usage: $0 [build|test|lint]..." >&2; exit 2 ;;
  esac
done

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [[ $status == "install ok installed" ]] || missing+=("$package")
done
(( ${#missing[@]} == 0 )) && exit 0

if ! command -v apt-get >/dev/null; then
  echo "error: apt-get not found; please install by other means: ${missing[*]}" >&2
  exit 1
fi
root=()
if (( EUID != 0 )); then
  command -v sudo >/dev/null || { echo "error: run as root, or install sudo, to get: ${missing[*]}" >&2; exit 1; }
  root=(sudo env DEBIAN_FRONTEND=noninteractive)
fi
echo "installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
# The package lists may be missing or old on a new machine: refresh them only when the install fails without.
install() { "${root[@]}" apt-get install -y --no-install-recommends "${missing[@]}" >&2; }
install || { "${root[@]}" apt-get update >&2 && install; }
