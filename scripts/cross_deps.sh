#!/usr/bin/env bash
# Puts what a cross build for x86-64 links against under .deps/x86_64: Debian's amd64 packages, unpacked beside the system, not installed.
# With "cuda": also the CUDA runtime's static library and stand-ins to link against for the CUDA libraries that the target machine has.
# usage: scripts/cross_deps.sh [cuda]
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD/.deps/x86_64
mkdir -p "$root/apt/lists/partial" "$root/apt/cache/archives/partial" "$root/debs"

command -v x86_64-linux-gnu-g++ >/dev/null || apt-get install -y --no-install-recommends g++-x86-64-linux-gnu

packages=(libfmt-dev libfmt9 libyaml-cpp-dev libyaml-cpp0.7 zlib1g-dev zlib1g libzstd-dev libzstd1 libblis-openmp-dev libblis4-openmp libdnnl-dev libdnnl2 ocl-icd-libopencl1 libgtest-dev libgmock-dev
  libbenchmark-dev libbenchmark1debian libgomp1 nlohmann-json3-dev libcli11-dev)
if [[ ! -e $root/done || $(<"$root/done") != "${packages[*]}" ]]; then
  touch "$root/apt/status"
  apt=(apt-get -o APT::Architecture=amd64 -o APT::Architectures::=amd64 -o "Dir::State=$root/apt" -o "Dir::State::status=$root/apt/status"
    -o "Dir::Cache=$root/apt/cache")
  "${apt[@]}" update -qq
  (cd "$root/debs" && "${apt[@]}" download -qq "${packages[@]}")
  for deb in "$root"/debs/*.deb; do dpkg -x "$deb" "$root"; done
  echo "${packages[*]}" >"$root/done"
fi

if [[ ${1:-} == cuda && ! -e $root/cuda/done ]]; then
  mkdir -p "$root/cuda/lib" "$root/cuda/wheel"
  version=$(nvcc --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
  python3 -m pip download -q --no-deps --only-binary=:all: --platform manylinux2014_x86_64 -d "$root/cuda/wheel" "nvidia-cuda-runtime==$version.*"
  for wheel in "$root"/cuda/wheel/*.whl; do python3 -m zipfile -e "$wheel" "$root/cuda/wheel/out"; done
  find "$root/cuda/wheel/out" -name '*.a' -exec cp {} "$root/cuda/lib/" \;
  # A stand-in exports the names of the library on this machine; the real one is bound on the target.
  here=$(dirname "$(command -v nvcc)")/../lib64
  for name in cublasLt cudnn nccl; do
    real=$(readlink -f "$(find -L "$here" /usr/lib -maxdepth 2 -name "lib$name.so" 2>/dev/null | head -1)") || continue
    [[ -f $real ]] || continue
    soname=$(objdump -p "$real" | awk '/SONAME/{print $2}')
    nm -D --defined-only "$real" | awk '$2=="T"{sub(/@.*/, "", $3); print "void " $3 "(void) {}"}' | sort -u >"$root/cuda/$name.c"
    x86_64-linux-gnu-gcc -w -fno-builtin -shared -Wl,-soname,"$soname" -o "$root/cuda/lib/lib$name.so" "$root/cuda/$name.c"
  done
  touch "$root/cuda/done"
fi
