#!/usr/bin/env bash
# Tests and measures the CPU program on an x86-64 machine, from a folder that scripts/cpu_bundle.sh filled: two threads on two cores, as
# docs/benchmarks.md has it. Every stage has its time limit and its file, so that a slow one costs no other.
#   scripts/cpu_check.sh build/device_cpu LOGS [machine] [kernels] [norm] [train] [peers] [tests] [compile]
set -uo pipefail
bundle=$(cd "$1" && pwd)
logs=$2
shift 2
mkdir -p "$logs"
bhyt=$bundle/bhyt
goals=("$@")
[[ $# -gt 0 ]] || goals=(machine kernels norm train peers tests)
wants() { [[ " ${goals[*]} " == *" $1 "* ]]; }
seconds() { echo "== $1 ($SECONDS s)"; }

# Two cores, not two threads of one.
siblings=/sys/devices/system/cpu/cpu0/topology/thread_siblings_list
second=1
[[ ! -r $siblings ]] || while grep -qw "$second" <(tr ',' '\n' <$siblings) || [[ $(<$siblings) == "0-$second" ]]; do second=$((second + 1)); done
two() { local limit=$1; shift; timeout "$limit" taskset -c "0,$second" "$@"; }

if wants machine; then
  {
    lscpu || cat /proc/cpuinfo
    echo "cores 0 and $second"
    "$bhyt" --version
    # Which of oneDNN's ways the products take.
    ONEDNN_VERBOSE=1 two 60 "$bhyt" bench gemm --reps 1 threads=2 >"$logs/verbose"
    grep verbose,info "$logs/verbose"
    awk -F, '/verbose,exec/ {print $5, $7, $8, $10}' "$logs/verbose" | sort | uniq -c | sort -rn | head -80
    rm "$logs/verbose"
  } >"$logs/machine.txt" 2>&1
  grep -E "Model name|cpu,isa" "$logs/machine.txt"
fi
if wants kernels; then
  seconds "matrix products, attention"
  two 90 "$bhyt" bench gemm attention threads=2 2>&1 | tee "$logs/kernels.txt"
fi
if wants norm; then
  seconds "norms"
  for method in rmsnorm bhyt; do two 90 "$bhyt" bench norm norm.method=$method threads=2 2>&1; done | tee "$logs/norm.txt"
fi
if wants train; then
  seconds "training"
  for type in fp32 bf16; do two 90 "$bhyt" bench train --reps 2 norm.method=bhyt dtype=$type threads=2 2>&1; done | tee "$logs/train.txt"
fi
peers() { two "$1" python3 "$bundle/peers.py" "$bhyt" "$bundle/torch_peers.py" --reps 1 "${@:2}" 2>&1; }
if wants peers; then
  seconds "against PyTorch"
  {
    for type in fp32 bf16; do peers 200 --rounds "${ROUNDS:-3}" --dtypes $type; done
    for type in fp32 bf16; do two 60 python3 "$bundle/torch_peers.py" gemm --dtype $type 2>&1; done
  } | tee "$logs/peers.txt"
fi
if wants tests; then
  for t in test_ops test_model test_generate; do
    seconds "$t"
    timeout 120 "$bundle/$t" 2>&1
  done >"$logs/tests.txt"
  [[ ! -d $bundle/fixtures ]] || for type in fp32 bf16; do timeout 60 python3 "$bundle/parity.py" "$bhyt" "$bundle/fixtures" dtype=$type 2>&1; done >>"$logs/tests.txt"
  grep -E "PASSED|FAILED|tests ran" "$logs/tests.txt"
fi
if wants compile; then
  seconds "against torch.compile"
  { for type in fp32 bf16; do peers 170 --rounds 1 --compile --dtypes $type; done; } | tee "$logs/compile.txt"
fi
seconds "done"
