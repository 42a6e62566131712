"""Compares `bhyt forward` with fixtures: the largest error of logits, loss, c_attn and gradients, relative to each tensor's largest value.

usage: parity.py [--nudge] [--limit=X] PROGRAM FIXTURES [key=value ...]      (key=value goes to bhyt forward: device=cuda dtype=bf16)
Exits with 1 when a fixture cannot be run, has an error above X, or when there is none.
FIXTURES holds folders (at any depth) with config.json, model.safetensors and io.safetensors. Needs numpy and safetensors.
--nudge tells an ill-conditioned fixture from a wrong program: every weight moves to a neighbouring fp32 number, and how far that takes the
program's own results is printed too. No fp32 program can be expected to come much closer than that.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np
from safetensors.numpy import load_file, save_file


def worst_errors(expected, got):
    """The largest relative error of logits, loss and c_attn, and of the gradients, each with the tensor's name."""
    worst = {"values": (0.0, ""), "gradients": (0.0, "")}
    for name, value in expected.items():
        if name in ("tokens", "greedy"):
            continue
        value = value.astype(np.float64)
        error = float(np.abs(value - got[name].reshape(value.shape)).max() / max(np.abs(value).max(), 1e-30))
        error = error if np.isfinite(error) else np.inf
        kind = "gradients" if name.startswith("grad.") else "values"
        worst[kind] = max(worst[kind], (error, name))
    return worst


def forward(program, model, io, options):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.safetensors"
        command = [program, "forward", "--model", model, "--tokens", io, "--out", out, "--grads", *options]
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        return load_file(out)


def nudged_forward(program, io, options):
    """The same for weights one step of fp32 up or down, at random."""
    random = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder)
        shutil.copy(io.parent / "config.json", model)
        weights = load_file(io.parent / "model.safetensors")
        for name, w in weights.items():
            if w.dtype == np.float32:
                weights[name] = np.nextafter(w, np.where(random.random(w.shape) < 0.5, -np.inf, np.inf).astype(np.float32))
        save_file(weights, model / "model.safetensors")
        return forward(program, model, io, options)


def show(worst):
    return "  ".join(f"{kind} {error:.2e} ({name})" for kind, (error, name) in worst.items())


def main():
    words = [w for w in sys.argv[1:] if not w.startswith("--")]
    limit = min([float(w.split("=")[1]) for w in sys.argv if w.startswith("--limit=")], default=np.inf)
    program, fixtures, options = words[0], pathlib.Path(words[1]), words[2:]
    cases, failed = sorted(fixtures.rglob("io.safetensors")), 0
    for io in cases:
        try:
            got = forward(program, io.parent, io, options)
            worst = worst_errors(load_file(io), got)
            beyond = any(error > limit for error, _ in worst.values())
            failed += beyond
            print(f"{io.parent.name:24}" + show(worst) + (f"  failed: above {limit:g}" if beyond else ""))
            if "--nudge" in sys.argv:
                print(f"{'  nudged':24}" + show(worst_errors(got, nudged_forward(program, io, options))))
        except RuntimeError as error:
            failed += 1
            print(f"{io.parent.name:24} failed: {error}")
    print(f"{len(cases) - failed} of {len(cases)} fixtures passed")
    return 0 if cases and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
