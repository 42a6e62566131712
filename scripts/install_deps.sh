#!/usr/bin/env bash
# Installs the Debian packages that a goal needs; does nothing when they are all there.
# usage: install_deps.sh [build|test|lint|cuda]...     (test, lint and cuda include build; cuda adds the header wheels, without which
# attention on the GPU uses our own kernels)
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
    test) packages+=(clang-16 libomp-16-dev libclang-rt-16-dev clang-format-16 libopenmpi-dev openmpi-bin iproute2 python3) ;;
    cuda) ;;
    lint) packages+=(clang-16 libomp-16-dev clang-format-16 clang-tidy-16) ;;
    *) echo "usage: $0 [build|test|lint|cuda]..." >&2; exit 2 ;;
  esac
done

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [[ $status == "install ok installed" ]] || missing+=("$package")
done

# Runs last, however the script ends up installing packages.
cuda_headers() {
  [[ " $* " == *" cuda "* && ! -e .deps/include/cudnn_frontend.h ]] || return 0
  local wheels
  wheels=$(mktemp -d)
  if python3 -m pip --version >/dev/null 2>&1 &&
    python3 -m pip download -q --no-deps --only-binary=:all: --require-hashes --python-version 3.11 \
      --platform "manylinux_2_28_$(uname -m)" --platform "manylinux_2_27_$(uname -m)" -r scripts/cuda_headers.txt -d "$wheels" >&2; then
    for wheel in "$wheels"/*.whl; do python3 -m zipfile -e "$wheel" "$wheels/out"; done
    mkdir -p .deps/include && cp -r "$wheels"/out/include/. .deps/include/
  else
    echo "notice: cudnn-frontend's headers could not be fetched; attention on the GPU will use our own kernels" >&2
  fi
  rm -rf "$wheels"
}
cd "$(dirname "$0")/.."
(( ${#missing[@]} == 0 )) && { cuda_headers "$@"; exit 0; }

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
cuda_headers "$@"
