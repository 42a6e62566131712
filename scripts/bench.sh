#!/usr/bin/env bash
# The benchmark tables: ours against the machine's limits, and against PyTorch where one is named:
#   BHYT_PEERS_PYTHON  a Python with torch and transformers       BHYT_PEERS  a script as bench/peers.py describes it
# usage: bench.sh PROGRAM
set -euo pipefail
cd "$(dirname "$0")/.."
"$1" --version
"$1" bench train gemm attention prompt decode
"$1" bench train norm.method=rmsnorm
"$1" bench norm
if [[ -n ${BHYT_PEERS_PYTHON:-} && -n ${BHYT_PEERS:-} ]]; then
  "$BHYT_PEERS_PYTHON" bench/peers.py "$1" "$BHYT_PEERS"
else
  echo "no peers: set BHYT_PEERS_PYTHON and BHYT_PEERS to compare with PyTorch (see scripts/bench.sh)"
fi
