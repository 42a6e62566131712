#!/usr/bin/env python3
"""Exchanges adapters with the real PEFT and compares logits.

For every base model given (a checkpoint folder that transformers loads): PEFT makes adapters with several targets, ranks and layers, gives
them random values and saves them; `bhyt forward --adapter`, merged and --unmerged, and `bhyt convert --merge` must give PEFT's logits
within 1e-4 of the largest. With --ours, an adapter folder that the program wrote is loaded by PEFT on its base and compared the same way.

usage: check_peft.py --bhyt build/bhyt --model DIR [--model DIR ...] [--ours BASE ADAPTER ...]    (needs torch, transformers, peft, safetensors)
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

KINDS = [
    dict(r=8, lora_alpha=16, target_modules="all-linear"),
    dict(r=3, lora_alpha=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1),
    dict(r=5, lora_alpha=5, target_modules=["k_proj", "up_proj", "down_proj"], layers_to_transform=[1]),
    dict(r=1, lora_alpha=2, target_modules=r".*\.(o_proj|gate_proj)"),
]


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, dtype=torch.float32).eval()


def logits(model, tokens):
    with torch.no_grad():
        return model(tokens).logits


def forward(bhyt, out, tokens, *flags):
    file = out / "tokens.safetensors"
    save_file({"tokens": torch.cat([tokens, tokens[:, :1]], 1)}, file)  # the last is only a target
    subprocess.run([bhyt, "forward", "--tokens", file, "--out", out / "got.safetensors", "--force", *map(str, flags)], check=True,
                   capture_output=True)
    return load_file(out / "got.safetensors")["logits"]


def compare(name, got, want):
    error = float((got - want).abs().max() / want.abs().max())
    print(f"{name:60} {error:.1e}{'' if error < 1e-4 else '  FAILED'}", flush=True)
    return error >= 1e-4


def check(bhyt, base, adapter, label, out):
    model = peft.PeftModel.from_pretrained(load(base), adapter).eval()
    tokens = torch.randint(0, model.config.vocab_size, (2, 24), generator=torch.Generator().manual_seed(1))
    beside, plain = logits(model, tokens), logits(load(base), tokens)
    failed = float((beside - plain).abs().max() / plain.abs().max()) < 1e-3  # an adapter that does nothing tests nothing
    failed += compare(f"{label}: unmerged", forward(bhyt, out, tokens, "--model", base, "--adapter", adapter, "--unmerged"), beside)
    model.merge_and_unload().save_pretrained(out / "theirs")
    merged = logits(load(out / "theirs"), tokens)  # loaded again: what a norm makes from the weights is of the merged ones then
    failed += compare(f"{label}: merged", forward(bhyt, out, tokens, "--model", base, "--adapter", adapter), merged)
    whole = out / "whole"
    subprocess.run([bhyt, "convert", base, "--merge", adapter, "--out", whole], check=True, capture_output=True)
    failed += compare(f"{label}: convert --merge, by transformers", logits(load(whole), tokens), merged)
    return failed


def theirs(bhyt, base):
    failed = 0
    for i, kind in enumerate(KINDS):
        with tempfile.TemporaryDirectory() as temporary:
            out = pathlib.Path(temporary)
            model = peft.get_peft_model(load(base), peft.LoraConfig(task_type="CAUSAL_LM", **kind))
            generator = torch.Generator().manual_seed(i)
            for name, p in model.named_parameters():
                if "lora_" in name:
                    p.data = 0.1 * torch.randn(p.shape, generator=generator)
            model.save_pretrained(out / "adapter")
            failed += check(bhyt, base, out / "adapter", f"{pathlib.Path(base).name} {kind['target_modules']} r {kind['r']}", out)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bhyt", required=True)
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--ours", nargs=2, action="append", default=[], metavar=("BASE", "ADAPTER"))
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    failed = sum(theirs(args.bhyt, base) for base in args.model)
    for base, adapter in args.ours:
        with tempfile.TemporaryDirectory() as temporary:
            failed += check(args.bhyt, base, adapter, f"ours: {pathlib.Path(adapter).name}", pathlib.Path(temporary))
    if failed:
        sys.exit(f"{failed} comparisons failed")
    print(f"peft {peft.__version__}: all agree")


if __name__ == "__main__":
    main()
