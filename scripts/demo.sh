#!/usr/bin/env bash
# Three small models side by side on a generated language whose entropy is known, and a report about them.
# usage: demo.sh PROGRAM
set -euo pipefail
cd "$(dirname "$0")/.."
program=$1
out=runs/demo
rm -rf $out
mkdir -p $out
"$program" data synth --out $out/data --tokens 4M
started=$SECONDS
for name in rmsnorm bhyt recommended; do
  "$program" pretrain configs/demo-$name.yaml
done
echo "trained three models in $((SECONDS - started)) s"
"$program" report $out/rmsnorm $out/bhyt $out/recommended --out $out/report.html
