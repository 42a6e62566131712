#!/usr/bin/env python3
"""Hashes of what short training runs come to: weights, masters and losses after 20 steps, for every method, fp32 and bf16, on the CPU.
A change that is not meant to change the mathematics leaves every line as it was.
usage: run_hashes.py PROGRAM [key=value ...]           prints one line a run: method, type, hash of weights, hash of losses
       run_hashes.py PROGRAM --compare FILE [...]      compares with lines printed before; exit 1 where one differs"""
import hashlib
import json
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

# Beside every method as it is: options that have code of their own.
EXTRA = [
    ("bhyt documents", ["norm.method=bhyt", "data.attend=document"]),
    ("bhyt untied", ["norm.method=bhyt", "model.tied=false", "model.embedding_scale=learned"]),
    ("bhyt aux residual_aware", ["norm.method=bhyt", "norm.aux_loss=0.01", "norm.correction=residual_aware"]),
    ("bhyt recompute block", ["norm.method=bhyt", "train.recompute=block"]),
    ("rmsnorm_approx pieces", ["norm.method=rmsnorm_approx", "train.micro_batch=3", "train.recompute=swiglu"]),
    ("bhyt frozen lambda", ["norm.method=bhyt", "norm.learn_lambda=false"]),
]


def tensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    for name in sorted(header):
        if name != "__metadata__":
            begin, end = header[name]["data_offsets"]
            yield name, data[8 + length + begin : 8 + length + end]


def run(program, keys, folder):
    words = [program, "pretrain", "model.preset=tiny", f"data.train={folder}/data/train.tok", "data.seq_len=64", "train.batch=8",
             "train.steps=20", "train.log_every=1", "train.lr=2e-3", "train.clip=0", "train.keep=1", f"run.dir={folder}/run", "device=cpu",
             "norm.refresh=5", "run.resume=never", *keys]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}:\n{done.stderr}")
    weights, losses = hashlib.sha256(), hashlib.sha256()
    for file in ("model.safetensors", "optimizer.safetensors"):
        for name, data in tensors(folder / "run/checkpoint-20" / file):
            if not data.strip(b"\0"):  # moments of what is not trained: kept by some versions
                continue
            weights.update(name.encode())
            weights.update(data)
    for line in (folder / "run/metrics.jsonl").read_text().splitlines():
        losses.update(repr(json.loads(line).get("loss")).encode())
    subprocess.run(["rm", "-rf", folder / "run"], check=True)
    return weights.hexdigest()[:16], losses.hexdigest()[:16]


def main():
    args = sys.argv[1:]
    if not args:
        sys.exit(__doc__)
    program = str(Path(args.pop(0)).resolve())
    expected = {}
    if args[:1] == ["--compare"]:
        expected = dict(line.rsplit(": ", 1) for line in Path(args[1]).read_text().splitlines())
        args = args[2:]
    text = subprocess.run([program, "help", "pretrain"], capture_output=True, text=True, check=True).stdout
    methods = re.search(r"norm\.method +\S+ +(.*)", text)[1].replace(",", " ").split()
    runs = [(m, [f"norm.method={m}"]) for m in methods] + EXTRA
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        subprocess.run([program, "data", "synth", "--out", folder / "data", "--tokens", "100K"], check=True, capture_output=True)
        for name, keys in runs:
            for dtype in ("fp32", "bf16"):
                found = "weights {} losses {}".format(*run(program, [*keys, f"dtype={dtype}", *args], folder))
                before = expected.get(f"{name} {dtype}")
                note = "" if not expected else "  same" if before == found else "  new" if before is None else f"  DIFFERS from {before}"
                wrong += "DIFFERS" in note
                print(f"{name} {dtype}: {found}{note}", flush=True)
    sys.exit(1 if wrong else 0)


main()
