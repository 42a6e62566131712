#!/usr/bin/env bash
# Runs everything that needs a GPU, from a folder that holds the programs of a CUDA build and their libraries, and leaves logs.
#   here:         scripts/gpu_bundle.sh                      (cross-builds for x86-64 and fills build/device)
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

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$logs/machine.txt"
if wants tests; then
  for t in test_ops test_model; do
    [[ -x $bundle/$t ]] || continue
    seconds "$t"
    "$bundle/$t" >"$logs/$t.log" 2>&1
    tail -n 12 "$logs/$t.log" | grep -E "PASSED|FAILED|tests ran"
  done
  for way in cudnn flash plain; do
    [[ -x $bundle/test_ops ]] || continue
    seconds "attention by the $way kernels"
    BHYT_ATTENTION=$way "$bundle/test_ops" --gtest_filter='Attention*' >"$logs/attention-$way.log" 2>&1
    tail -n 12 "$logs/attention-$way.log" | grep -E "PASSED|FAILED|tests ran"
  done
fi
if wants sanitizer; then
  # sanitize TOOL NAME FILTER
  sanitize() {
    seconds "compute-sanitizer $1, $2"
    timeout 200 compute-sanitizer --tool "$1" --error-exitcode 9 "$bundle/test_ops" --gtest_filter="$3" >"$logs/sanitizer-$1-$2.log" 2>&1
    echo "exit $?"
    grep -E "ERROR SUMMARY|RACECHECK SUMMARY" "$logs/sanitizer-$1-$2.log"
  }
  for tool in memcheck initcheck racecheck; do
    sanitize $tool operations "${SANITIZER_FILTER:-Norm.Cases:Swiglu.*:Rope.Cases:Embedding.Cases:AdamW.Cases:CrossEntropy.Cases}"
    # Not by cuDNN: its kernels read parts of their own workspace that nobody wrote, which initcheck reports.
    for way in hopper flash; do BHYT_ATTENTION=$way sanitize $tool attention-$way Attention.Cases; done
  done
fi
if wants parity && [[ -d $bundle/fixtures ]]; then
  seconds "parity"
  for type in fp32 bf16; do
    echo "$type"
    python3 "$bundle/parity.py" "$bhyt" "$bundle/fixtures" device=cuda dtype=$type
  done | tee "$logs/parity.txt"
fi
if wants bench; then
  train() { "$bhyt" bench train "$@" device=cuda dtype=bf16 --json; }
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
    "$bhyt" bench norm gemm attention model.preset=llama-1b train.batch=16 data.seq_len=1024 device=cuda dtype=bf16 --json
    for way in cudnn flash; do
      BHYT_ATTENTION=$way "$bhyt" bench attention model.preset=llama-1b train.batch=16 data.seq_len=1024 device=cuda dtype=bf16 --json
    done
  } >"$logs/bench.json" 2>"$logs/bench.log"
  tail -n 3 "$logs/bench.log"
fi
if wants peers && [[ -f $bundle/torch_peers.py ]]; then
  seconds "peers"
  python3 "$bundle/torch_peers.py" ${PEERS:-train --quick --size 1b --norms rms,bhyt --modes compile} >"$logs/peers.json" 2>"$logs/peers.log"
  tail -n 8 "$logs/peers.json"
fi
seconds "done"
