#!/usr/bin/env bash
# Trains on a GPU and checks what training promises there: the same bits when repeated, killed, moved or recomputed, the CPU's curve, and
# the large models. From a folder that holds the programs of a CUDA build and their libraries (scripts/gpu_bundle.sh):
#   scripts/gpu_train.sh BUNDLE LOGS [twice] [kill] [recompute] [cpu] [move] [real] [3b] [memory]
# Leaves LOGS/train.txt (a line of verdict for each part) and LOGS/train.tar.gz (metrics, logs, tuning.json, report; no weights).
# real, 3b and memory train on BUNDLE/data/train.bin and valid.bin, token files made with Llama-3's tokenizer.
#   DEVICE=cpu SMALL=… BIG=…   a dry run: other words for the small model, and for the large ones
#   STEPS=200  WHOLE=1         length of `real`; also without the interruption, and compared
#   WORK=DIR                   where runs and their checkpoints live meanwhile (36 GB for `real`)
set -uo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
bundle=$(cd "$1" && pwd)
mkdir -p "$2"
logs=$(cd "$2" && pwd)
shift 2
parts=("$@")
((${#parts[@]})) || parts=(twice kill recompute cpu move real 3b memory)
export LD_LIBRARY_PATH=$bundle:/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}
bhyt=$bundle/bhyt
device=${DEVICE:-cuda}
steps=${STEPS:-200}
data=$bundle/data
roomier() { for d in "$@"; do [[ ! -w $d ]] || echo "$(df --output=avail "$d" | tail -n 1) $d"; done | sort -rn | awk 'NR == 1 {print $2}'; }
work=$(mktemp -d "${WORK:-$(roomier /dev/shm "${TMPDIR:-/tmp}")}/bhyt-train-XXXXXX")
trap 'rm -rf "$work"' EXIT
: >"$logs/train.txt"

say() { echo "$*" | tee -a "$logs/train.txt"; }
began=0
verdict() { say "$(printf '%-4s %-9s %4d s  %s' "$1" "$part" $((SECONDS - began)) "$2")"; }

small=(model.d=256 model.layers=4 model.heads=4 model.kv_heads=2 model.mlp=768 data.seq_len=256 train.batch=16 train.lr=2e-3 train.steps=200
  train.log_every=5 train.eval_every=50 train.eval_batches=2 train.save_every=25 train.keep=2)
tiny=(model.d=64 model.layers=2 model.heads=4 model.kv_heads=2 model.mlp=128 data.seq_len=64 train.batch=8 train.lr=2e-3 train.log_every=1
  train.eval_every=0 train.save_every=0 dtype=fp32)
big=(data.train="[$data/train.bin]" data.valid="[$data/valid.bin]" data.tokenizer=auto data.seq_len=1024 train.tokens=null train.batch=16
  train.micro_batch=16 train.keep=1 dtype=bf16)
read -ra small_more <<<"${SMALL:-}"
read -ra big_more <<<"${BIG:-}"

synth() {
  [[ -e $work/synth/train.tok ]] || "$bhyt" data synth --out "$work/synth" --tokens 2000000 >"$work/synth.out" 2>&1
  language=(data.train="$work/synth/train.tok" data.valid="$work/synth/valid.tok")
}
# start NAME WORDS…: in the background, as $pid. A run without a device of its own is on the one asked for.
start() {
  local name=$1
  shift
  "$bhyt" pretrain "$@" run.dir="$work/$name" >>"$work/$name.out" 2>&1 &
  pid=$!
}
train() {
  start "$@"
  wait "$pid"
}
train_small() { train "$1" "${small[@]}" "${language[@]}" device="$device" "${@:2}" "${small_more[@]}"; }
train_tiny() { train "$1" "${tiny[@]}" "${language[@]}" "${@:2}"; }
# A run computes the same bits given the algorithms of the first: a new directory is given its tuning.json.
share_tuning() {
  mkdir -p "$work/$2"
  [[ ! -e $work/$1/tuning.json ]] || cp "$work/$1/tuning.json" "$work/$2/"
}
last_step() { tail -n 4 "$work/$1/metrics.jsonl" 2>/dev/null | grep -o '^{"step":[0-9]*' | tail -n 1 | grep -o '[0-9]*'; }
# until_step NAME STEP: false when the run ended before.
until_step() {
  while kill -0 "$pid" 2>/dev/null; do
    local at
    at=$(last_step "$1")
    ((${at:-0} < $2)) || return 0
    sleep 0.02
  done
  return 1
}
metrics() { sed -E 's/,"(tok_s|step_ms|mfu|time)":[^,}]*//g' "$work/$1/metrics.jsonl"; }
same_metrics() { cmp -s <(metrics "$1") <(metrics "$2"); }
newest() { ls -d "$work/$1"/checkpoint-* | sort -V | tail -n 1; }
same_checkpoint() { diff -rq "$(newest "$1")" "$(newest "$2")" >/dev/null; }
same_run() { same_metrics "$1" "$2" && same_checkpoint "$1" "$2"; }
losses() { grep -E '"loss":' "$work/$1/metrics.jsonl" | sed -E 's/.*"step":([0-9]+).*"loss":([-+.0-9e]+).*/\1 \2/'; }
# The largest difference of two curves, and over how many steps.
difference() {
  join <(losses "$1" | sort -k1b,1) <(losses "$2" | sort -k1b,1) |
    awk '{d = $2 - $3; if (d < 0) d = -d; if (d > most) most = d; n++} END {printf "%.3g %d\n", most, n}'
}
small_enough() { awk -v a="$1" -v b="$2" 'BEGIN {exit !(a <= b)}'; }
memory_of() { grep -h -o 'memory  weights.*' "$work/$1.out" | tail -n 1; }
used_now() { nvidia-smi --query-gpu=memory.used --format=csv,noheader 2>/dev/null | head -n 1; }
drop() { rm -rf "$work/$1"/checkpoint-* "$work/$1"/tmp-*; }
failed() { tail -n 2 "$work/$1.out" | tr '\n' ' '; }

reference() {
  synth
  [[ -e $work/first-$1 ]] || train_small "first-$1" dtype="$1" || verdict FAIL "$1: $(failed "first-$1")"
}

part_twice() {
  for type in bf16 fp32; do
    reference $type
    share_tuning first-$type again-$type
    train_small again-$type dtype=$type
    local anew="not tried"
    if [[ $type == bf16 ]]; then
      train_small anew-$type dtype=$type
      if same_run first-$type anew-$type; then anew="the same bits"; else anew="other bits"; fi
      drop anew-$type
    fi
    if same_run first-$type again-$type; then
      verdict PASS "$type: metrics and checkpoint repeat, given tuning.json; with algorithms chosen anew: $anew"
    else
      verdict FAIL "$type: metrics or checkpoint differ; $(difference first-$type again-$type) steps apart; $(failed again-$type)"
    fi
    drop again-$type
  done
}

part_kill() {
  reference bf16
  share_tuning first-bf16 killed
  local at=()
  for round in 1 2 3; do
    start killed "${small[@]}" "${language[@]}" device="$device" dtype=bf16 resume=auto "${small_more[@]}"
    until_step killed $((round * 50 + RANDOM % 20 - 20)) && sleep "0.0$((RANDOM % 10))"
    kill -9 "$pid" 2>/dev/null && at+=("$(last_step killed)")
    wait "$pid" 2>/dev/null
  done
  train_small killed dtype=bf16 resume=auto
  if ((${#at[@]} == 0)); then
    verdict FAIL "ended before it could be killed; $(failed killed)"
  elif same_run first-bf16 killed; then
    verdict PASS "killed near steps ${at[*]} and resumed: the files of a run that was not"
  else
    verdict FAIL "killed near steps ${at[*]}: differs; $(failed killed)"
  fi
  drop killed
}

part_recompute() {
  reference bf16
  local wrong=""
  say "     none: $(memory_of first-bf16)"
  for how in norm swiglu block; do
    share_tuning first-bf16 $how
    train_small $how dtype=bf16 train.recompute=$how
    same_run first-bf16 $how || wrong+=" $how"
    say "     $how: $(memory_of $how)"
    drop $how
  done
  if [[ -z $wrong ]]; then verdict PASS "norm, swiglu and block give the bits of none"; else verdict FAIL "other bits with$wrong"; fi
}

part_cpu() {
  synth
  for method in bhyt rmsnorm; do
    train_tiny cpu-$method norm.method=$method train.steps=200 device=cpu
    train_tiny gpu-$method norm.method=$method train.steps=200 device="$device"
    local most count
    read -r most count < <(difference cpu-$method gpu-$method)
    if ((count == 200)) && small_enough "$most" 1e-3; then
      verdict PASS "$method, fp32: CPU and GPU differ by at most $most in loss over $count steps"
    else
      verdict FAIL "$method, fp32: CPU and GPU differ by $most over $count steps; $(failed gpu-$method)"
    fi
  done
}

part_move() {
  synth
  local at=(0) most count
  train_tiny stays train.steps=300 device="$device"
  for where in "$device" cpu; do
    start moves "${tiny[@]}" "${language[@]}" train.steps=300 resume=auto device="$where"
    until_step moves $((${at[-1]} + 50))
    kill -TERM "$pid" 2>/dev/null
    wait "$pid"
    at+=("$(last_step moves)")
  done
  train_tiny moves train.steps=300 resume=auto device="$device"
  read -r most count < <(difference stays moves)
  if ((count == 300)) && small_enough "$most" 1e-3; then
    verdict PASS "GPU to step ${at[1]}, CPU to ${at[2]}, GPU to 300: at most $most from the GPU alone"
  else
    verdict FAIL "stopped at ${at[*]}: $most over $count steps; $(failed moves)"
  fi
}

# large NAME WORDS…: on the Wikipedia text.
large_words() { words=("$repo/configs/llama-1b-bhyt.yaml" "${big[@]}" device="$device" "$@" "${big_more[@]}"); }
has_data() { [[ -e $data/train.bin && -e $data/valid.bin ]] || ! verdict SKIP "no $data/train.bin and valid.bin"; }

part_real() {
  has_data || return
  large_words train.steps="$steps" train.log_every=5 train.eval_every=$((steps / 4)) train.eval_batches=4 train.save_every=0 resume=auto
  start real "${words[@]}"
  until_step real $((steps / 2))
  kill -TERM "$pid" 2>/dev/null
  wait "$pid"
  local code=$? stopped
  stopped=$(last_step real)
  say "     stopped with exit code $code at step $stopped, $((SECONDS - began)) s"
  train real "${words[@]}"
  code=$?
  drop real
  "$bhyt" report "$work/real" >>"$work/real.out" 2>&1
  grep -h -E '^(bhyt|memory|data)|done  ' "$work/real.out" | sed 's/^/     /' | sort -u | tee -a "$logs/train.txt"
  grep '"loss"' "$work/real/metrics.jsonl" | awk 'NR % 8 == 1' | sed 's/^/     /' | tee -a "$logs/train.txt"
  if ((code == 0)) && [[ $(last_step real) == "$steps" ]]; then
    verdict PASS "$steps steps, stopped at $stopped and resumed"
  else
    verdict FAIL "exit code $code at step $(last_step real); $(failed real)"
  fi
  [[ -n ${WHOLE:-} ]] || return
  share_tuning real whole
  train whole "${words[@]}"
  drop whole
  if same_metrics real whole; then
    verdict PASS "the curve is that of a run without the interruption, to the last digit"
  else
    verdict FAIL "the curves differ: $(difference real whole) steps"
  fi
}

# measure NAME STEPS WORDS…: so many steps, then killed (a checkpoint of 3B is 45 GB). Sets $line; false when it does not fit.
measure() {
  local name=$1 n=$2 used
  shift 2
  large_words train.steps=100000 train.log_every=5 train.eval_every=0 train.save_every=0 "$@"
  start "$name" "${words[@]}"
  until_step "$name" "$n"
  local ran=$?
  used=$(used_now)
  kill -9 "$pid" 2>/dev/null
  wait "$pid" 2>/dev/null
  line="$(memory_of "$name") | in use ${used:-n/a} | $(grep '"loss"' "$work/$name/metrics.jsonl" 2>/dev/null | tail -n 1 |
    grep -oE '"(loss|tok_s|step_ms|mfu)":[^,}]*' | tr '\n' ' ')"
  return $ran
}

part_3b() {
  has_data || return
  for how in none norm swiglu block; do
    if measure 3b-$how 10 model.preset=llama-3b data.seq_len=2048 train.recompute=$how; then
      verdict PASS "Llama-3B 16×2048 trains with recompute $how: $line"
      return
    fi
    say "     $how: $(failed 3b-$how)"
  done
  verdict FAIL "Llama-3B 16×2048 does not fit"
}

part_memory() {
  has_data || return
  for how in none norm swiglu block; do
    share_tuning real memory-$how
    if measure memory-$how 20 train.recompute=$how; then verdict PASS "$how: $line"; else verdict FAIL "$how: $(failed memory-$how)"; fi
  done
}

say "$("$bhyt" --version | tr '\n' ' ') $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null)"
for part in "${parts[@]}"; do
  began=$SECONDS
  if declare -F "part_$part" >/dev/null; then "part_$part"; else verdict FAIL "no such part"; fi
done
cd "$work" && find . -name metrics.jsonl -o -name log.txt -o -name report.html -o -name tuning.json -o -name resolved.yaml -o -name '*.out' |
  tar czf "$logs/train.tar.gz" -T -
say "done in $SECONDS s"
