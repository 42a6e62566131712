#!/usr/bin/env python3
"""Loads checkpoints with Hugging Face transformers and compares with what the program computes and with the golden files.

For every case under tests/golden/models: `bhyt convert` writes the checkpoint as the program would, transformers loads that folder
(trust_remote_code), and its logits must agree with the golden ones within 1e-4 of the largest; `generate` must give the golden greedy ids.

usage: check_transformers.py --bhyt build/bhyt [--models DIR] [--only NAME ...]      (needs torch, transformers and safetensors)
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file


def check(folder, io):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, dtype=torch.float32).eval()
    tokens = io["tokens"]
    with torch.no_grad():
        logits = model(tokens[:, :-1]).logits
    error = float((logits - io["logits"]).abs().max() / io["logits"].abs().max())
    greedy = io["greedy"]
    prompt = greedy[:, : greedy.shape[1] // 2]
    ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=prompt.shape[1], min_new_tokens=prompt.shape[1],
                         do_sample=False, eos_token_id=None, pad_token_id=0)
    return error, bool((ids == greedy).all())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bhyt", required=True)
    parser.add_argument("--models", type=pathlib.Path, default=pathlib.Path(__file__).parents[1] / "tests/golden/models")
    parser.add_argument("--only", nargs="*")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    failed = 0
    for case in sorted(p for p in args.models.iterdir() if (p / "io.safetensors").exists()):
        if args.only and case.name not in args.only:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary) / case.name
            subprocess.run([args.bhyt, "convert", case, "--out", folder], check=True, capture_output=True)
            error, same = check(folder, load_file(case / "io.safetensors"))
        good = error < 1e-4 and same
        failed += not good
        print(f"{case.name:28} logits {error:.1e}  greedy {'same' if same else 'DIFFERENT'}{'' if good else '  FAILED'}", flush=True)
    sys.exit(f"{failed} failed" if failed else 0)


if __name__ == "__main__":
    main()
