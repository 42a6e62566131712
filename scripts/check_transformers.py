#!/usr/bin/env python3
"""Loads checkpoints with Hugging Face transformers and compares with what the program computes and with the golden files.

For every case under tests/golden/models: `bhyt convert` writes the checkpoint as the program would, transformers loads that folder
(trust_remote_code), and its logits must agree with the golden ones within 1e-4 of the largest; `generate` must give the golden greedy ids.
With --data also the llama2.c models of DIR/checkpoints, against greedy.json there.

usage: check_transformers.py --bhyt build/bhyt [--models DIR] [--data DIR] [--only NAME ...]      (needs torch, transformers and safetensors)
"""
import argparse
import json
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
    return error, continues(model, io["greedy"], io["greedy"].shape[1] // 2)


def continues(model, greedy, given):
    prompt, new = greedy[:, :given], greedy.shape[1] - given
    ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=new, min_new_tokens=new, do_sample=False,
                         eos_token_id=None, pad_token_id=0)
    return bool((ids == greedy).all())


def check_llama2c(bhyt, folder, only):
    failed = 0
    for name, want in json.loads((folder / "greedy.json").read_text()).items():
        if only and name not in only:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            out = pathlib.Path(temporary) / name
            subprocess.run([bhyt, "convert", folder / f"{name}.bin", "--out", out], check=True, capture_output=True)
            model = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
        same = continues(model, torch.tensor([want["greedy_from_bos"]]), 1)
        failed += not same
        print(f"{name:28} greedy {'same' if same else 'DIFFERENT  FAILED'}", flush=True)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bhyt", required=True)
    parser.add_argument("--models", type=pathlib.Path, default=pathlib.Path(__file__).parents[1] / "tests/golden/models")
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--only", nargs="*")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    failed = check_llama2c(args.bhyt, args.data / "checkpoints", args.only) if args.data else 0
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
