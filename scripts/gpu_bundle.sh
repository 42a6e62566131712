#!/usr/bin/env bash
# Cross-builds the program and the tests with CUDA for x86-64 and puts them, with the libraries they need, into build/device:
# a folder to copy to a GPU machine and hand to scripts/gpu_check.sh and scripts/gpu_train.sh. FIXTURES and PEERS_SCRIPT, where set, go along.
# build/device.tar.xz holds the same in a tenth of the size: every program has the kernels, and the archive has them once.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/cross_deps.sh cuda
scripts/install_deps.sh cuda
command -v xz >/dev/null || apt-get install -y --no-install-recommends xz-utils
cmake -S . -B build/x86_64 -G Ninja --toolchain cmake/x86_64-cross.cmake -DBHYT_GEMM=blis -DBHYT_BENCH=OFF -DBHYT_CUDA=ON -DBHYT_CUDA_ARCHS=90a --log-level=ERROR
tests=(test_{core,ops,parallel,model,generate,eval,analysis,train})
cmake --build build/x86_64 --target bhyt "${tests[@]}"
mkdir -p build/device
lib=.deps/x86_64/usr/lib/x86_64-linux-gnu
cp -L $lib/libfmt.so.9 $lib/libyaml-cpp.so.0.7 $lib/libzstd.so.1 $lib/blis-openmp/libblis.so.4 .deps/x86_64/lib/x86_64-linux-gnu/libz.so.1 build/device/
# One C++ runtime for the programs and for yaml-cpp, whose exceptions cross between them.
for lib in libgomp.so.1 libstdc++.so.6 libgcc_s.so.1; do cp -L "$(x86_64-linux-gnu-g++ -print-file-name=$lib)" build/device/; done
cp build/x86_64/bhyt "${tests[@]/#/build/x86_64/tests/}" scripts/parity.py build/device/
x86_64-linux-gnu-strip build/device/bhyt "${tests[@]/#/build/device/}"
[[ -z ${FIXTURES:-} ]] || { rm -rf build/device/fixtures && cp -rL "$FIXTURES" build/device/fixtures && chmod -R u+w build/device/fixtures; }
[[ -z ${PEERS_SCRIPT:-} ]] || cp -L "$PEERS_SCRIPT" build/device/torch_peers.py
tar -C build -cf - device | xz -T1 --lzma2=preset=1,dict=64MiB >build/device.tar.xz  # a dictionary that reaches back over a whole program
du -sh build/device build/device.tar.xz
