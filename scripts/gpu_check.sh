#!/usr/bin/env bash
# Runs everything that needs a GPU, from a folder that holds the programs of a CUDA build and their libraries, and leaves logs.
# Goes on after a failure, names all of them at the end and then exits with 1; without a GPU it does nothing and exits with 2.
#   here:         scripts/gpu_bundle.sh                      (cross-builds for x86-64 and fills build/device, and build/device.tar.xz with it)
#   on the GPU:   scripts/gpu_check.sh build/device LOGS [tests] [sanitizer] [parity] [bench] [peers]
set -uo pipefail
bundle=$(cd "$1" && pwd)
logs=$2
shift 2
mkdir -p "$logs"
export LD_LIBRARY_PATH=$bundle:/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}
bhyt=$bundle/bhyt
wants() { [[ " ${goals[*]} " == *" $1 "* ]]; }
goals=("${@:-tests}")
seconds() { echo "== $1 ($SECONDS s)"; }


failures=()
# must WHAT STATUS: notes a failure
must() {
  (( $2 == 0 )) && return
  echo "FAILED: $1 (exit $2)"
  failures+=("$1")
}

# run_tests PROGRAM LOG [FILTER]: a program that is missing, and one that does not see the GPU, has failed too.
run_tests() {
  local log=$logs/$2.log status=0
  seconds "$2"
  if [[ ! -x $bundle/$1 ]]; then
    must "$2: no $1 in $bundle" 127
    return
  fi
  "$bundle/$1" --gtest_filter="${3:-*}" >"$log" 2>&1 || status=$?
  grep -E "^\[ *(PASSED|FAILED|SKIPPED) *\] [0-9]+ test|tests ran" "$log"
  must "$2" "$status"
  if grep -qE "^no GPU" "$log"; then must "$2: tests skipped for want of a GPU" 1; fi
  if [[ $compute == 9.0* ]] && grep -q "this GPU has no kernel for it" "$log"; then must "$2: tests skipped that Hopper has kernels for" 1; fi
}

if ! gpus=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1) || [[ -z $gpus ]]; then
  echo "error: gpu_check.sh needs an NVIDIA GPU, and nvidia-smi shows none here: ${gpus:-nothing listed}" >&2
  exit 2
fi
echo "$gpus" | tee "$logs/machine.txt"
compute=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader)
if wants tests; then
  for t in test_core test_ops test_parallel test_model test_generate test_analysis test_train; do run_tests $t $t; done
  run_tests test_eval test_eval 'Score.*'  # what else it tests knows nothing of devices
  for way in cudnn flash tiled plain; do BHYT_ATTENTION=$way run_tests test_ops "attention-$way" 'Attention*'; done
fi
if wants sanitizer; then
  # sanitize TOOL NAME FILTER
  sanitize() {
    local log=$logs/sanitizer-$1-$2.log status=0
    seconds "compute-sanitizer $1, $2"
    timeout 200 compute-sanitizer --tool "$1" --error-exitcode 9 "$bundle/test_ops" --gtest_filter="$3" >"$log" 2>&1 || status=$?
    grep -E "ERROR SUMMARY|RACECHECK SUMMARY" "$log"
    must "compute-sanitizer $1, $2" "$status"
  }
  for tool in memcheck initcheck racecheck; do
    sanitize $tool operations "${SANITIZER_FILTER:-Norm.Cases:Swiglu.*:Rope.Cases:Embedding.Cases:AdamW.Cases:CrossEntropy.Cases:Fused.*:GemmByRow.OnAGpuToo}"
    # Not by cuDNN: its kernels read parts of their own workspace that nobody wrote, which initcheck reports.
    for way in hopper flash tiled; do BHYT_ATTENTION=$way sanitize $tool attention-$way Attention.Cases; done
  done
fi
if wants parity; then
  seconds "parity"
  [[ -d $bundle/fixtures ]]
  must "parity: no fixtures in $bundle" $?
  # Wide enough for the one fixture that magnifies rounding (docs/method.md) and for scalars' gradients in bf16: for wrong results, not for drift.
  declare -A limits=([fp32]=1e-2 [bf16]=0.5)
  for type in fp32 bf16; do
    [[ -d $bundle/fixtures ]] || break
    echo "$type"
    python3 "$bundle/parity.py" --limit="${limits[$type]}" "$bhyt" "$bundle/fixtures" device=cuda dtype=$type >"$logs/parity-$type.txt" 2>&1
    must "parity, $type" $?
    cat "$logs/parity-$type.txt"
  done
fi
if wants bench; then
  train() { bench train "$@" device=cuda dtype=bf16; }
  bench() { "$bhyt" bench "$@" --json || must "bench $*" $? >&2; }
  {
    for norm in rmsnorm bhyt; do
      seconds "llama-1b $norm" >&2
      train model.preset=llama-1b train.batch=16 data.seq_len=1024 norm.method=$norm
    done
    seconds "llama-374m" >&2
    train model.preset=llama-374m train.batch=16 data.seq_len=1024
    seconds "llama-3b" >&2
    train model.preset=llama-3b train.batch=16 data.seq_len=1024
    seconds "59M" >&2
    train model.d=512 model.layers=16 model.heads=8 model.kv_heads=4 model.head_dim=64 model.mlp=1536 model.vocab=16384 train.batch=32 data.seq_len=1024
    seconds "kernels" >&2
    bench norm gemm attention model.preset=llama-1b train.batch=16 data.seq_len=1024 device=cuda dtype=bf16
    for way in cudnn flash; do
      BHYT_ATTENTION=$way bench attention model.preset=llama-1b train.batch=16 data.seq_len=1024 device=cuda dtype=bf16
    done
  } >"$logs/bench.json" 2>"$logs/bench.log"
  tail -n 3 "$logs/bench.log"
fi
if wants peers && [[ -f $bundle/torch_peers.py ]]; then
  seconds "peers"
  python3 "$bundle/torch_peers.py" ${PEERS:-train --quick --size 1b --norms rms,bhyt --modes compile} >"$logs/peers.json" 2>"$logs/peers.log"
  must "peers" $?
  tail -n 8 "$logs/peers.json"
fi
seconds "done"
(( ${#failures[@]} == 0 )) || { printf 'FAILED: %s\n' "${failures[@]}"; exit 1; }
