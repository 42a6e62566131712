"""Compares `bhyt forward` with fixtures: the largest error of logits, loss, c_attn and gradients, relative to each tensor's largest value.

usage: parity.py PROGRAM FIXTURES [key=value ...]      (key=value goes to bhyt forward: device=cuda dtype=bf16)
FIXTURES holds folders (at any depth) with config.json, model.safetensors and io.safetensors. Needs numpy and safetensors.
"""
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from safetensors.numpy import load_file


def worst_errors(expected, got):
    """The largest relative error of logits, loss and c_attn, and of the gradients, each with the tensor's name."""
    worst = {"values": (0.0, ""), "gradients": (0.0, "")}
    for name, value in expected.items():
        if name in ("tokens", "greedy"):
            continue
        value = value.astype(np.float64)
        error = float(np.abs(value - got[name].reshape(value.shape)).max() / max(np.abs(value).max(), 1e-30))
        kind = "gradients" if name.startswith("grad.") else "values"
        worst[kind] = max(worst[kind], (error, name))
    return worst


def main():
    program, fixtures, options = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
    for io in sorted(fixtures.rglob("io.safetensors")):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "out.safetensors"
            command = [program, "forward", "--model", io.parent, "--tokens", io, "--out", out, "--grads", *options]
            done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
            if done.returncode:
                print(f"{io.parent.name:24} failed: {done.stderr.strip()}")
                continue
            worst = worst_errors(load_file(io), load_file(out))
        print(f"{io.parent.name:24}" + "  ".join(f"{kind} {error:.2e} ({name})" for kind, (error, name) in worst.items()))


main()
