#!/usr/bin/env bash
# Builds the libFuzzer targets with clang 16 and runs them one after the other: scripts/fuzz.sh SECONDS [TARGET…]   (default: all)
# Starts from fuzz/corpus; what is new grows in build/fuzz/corpus, what is found lands in build/fuzz/found_*. Logs: build/fuzz/TARGET.log
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?usage: scripts/fuzz.sh SECONDS [TARGET…]}
shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(safetensors model_config tokenizer_json tiktoken token_file weight_index vocab_merges llama2c_model llama2c_tokenizer
  jsonl_text run_config compressed_input trainer_state metrics_lines)

cmake -S . -B build/fuzz -G Ninja -DBHYT_FUZZ=ON -DBHYT_TESTS=OFF -DBHYT_BENCH=OFF -DBHYT_QUICK_BUILD=ON -DCMAKE_CXX_COMPILER=clang++-16 -DCMAKE_CXX_FLAGS_RELEASE=-O1 --log-level=WARNING
cmake --build build/fuzz -j "${JOBS:-2}" --target "${targets[@]/#/fuzz_}"
for t in "${targets[@]}"; do
  case $t in
    safetensors | model_config | weight_index | tokenizer_json | vocab_merges | jsonl_text | trainer_state | metrics_lines) words=(-dict=fuzz/json.dict) ;;
    *) words=() ;;
  esac
  mkdir -p "build/fuzz/corpus/$t"
  if ! "build/fuzz/fuzz/fuzz_$t" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -close_fd_mask=2 -max_len=16384 -print_final_stats=1 "${words[@]}" \
    -artifact_prefix="build/fuzz/found_${t}_" "build/fuzz/corpus/$t" "fuzz/corpus/$t" >"build/fuzz/$t.log" 2>&1; then
    tail -n 40 "build/fuzz/$t.log"
    echo "$t: found something, see build/fuzz/$t.log"
    exit 1
  fi
  echo "$t: $(grep -o 'cov: .*corp: [^ ]*' "build/fuzz/$t.log" | tail -n 1), $(grep number_of_executed "build/fuzz/$t.log" | grep -o '[0-9]*$') runs, nothing found"
done
