#!/usr/bin/env bash
# Cross-builds the program and the tests with oneDNN for x86-64 and puts them, with the libraries they need, into build/device_cpu:
# a folder to copy to an x86-64 machine and hand to scripts/cpu_check.sh. FIXTURES and PEERS_SCRIPT, where set, go along.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/cross_deps.sh
cmake -S . -B build/x86_64_cpu -G Ninja --toolchain cmake/x86_64-cross.cmake -DBHYT_GEMM=onednn -DBHYT_BENCH=OFF --log-level=ERROR
cmake --build build/x86_64_cpu --target bhyt test_ops test_model test_generate
to=build/device_cpu
mkdir -p $to
lib=.deps/x86_64/usr/lib/x86_64-linux-gnu
cp -L $lib/libfmt.so.9 $lib/libyaml-cpp.so.0.7 $lib/libzstd.so.1 $lib/libdnnl.so.2 $lib/libOpenCL.so.1 .deps/x86_64/lib/x86_64-linux-gnu/libz.so.1 $to/
# One C++ runtime for the programs and for yaml-cpp, whose exceptions cross between them.
for name in libgomp.so.1 libstdc++.so.6 libgcc_s.so.1; do cp -L "$(x86_64-linux-gnu-g++ -print-file-name=$name)" $to/; done
cp build/x86_64_cpu/bhyt build/x86_64_cpu/tests/test_{ops,model,generate} bench/peers.py scripts/parity.py $to/
x86_64-linux-gnu-strip $to/{bhyt,test_ops,test_model,test_generate}
[[ -z ${FIXTURES:-} ]] || { rm -rf $to/fixtures && cp -rL "$FIXTURES" $to/fixtures && chmod -R u+w $to/fixtures; }
[[ -z ${PEERS_SCRIPT:-} ]] || cp -L "$PEERS_SCRIPT" $to/torch_peers.py
du -sh $to
