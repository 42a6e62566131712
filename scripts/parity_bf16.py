#!/usr/bin/env python3
"""How far bf16 gets with the gradient of λ at the second norm of each block: `bhyt forward` and PyTorch with either of its attentions (the exported
model code), each beside PyTorch in fp32, over many batches of random tokens. The model is small (d 512, 3 layers) and one step old.

Prints for each program and layer the root mean square error and the median relative one, then how often one program is within twice the error
of another, or within 2 % (--floor): whether such a bound can be kept on one batch at all is seen from PyTorch beside itself.

usage: parity_bf16.py BHYT [--norm bhyt_star] [--batches 40] [--rows 2] [--device cpu]      (needs torch, transformers, safetensors)
"""
import argparse
import pathlib
import subprocess
import tempfile
import warnings

import torch
import transformers
from safetensors.torch import load_file, save_file

LENGTH, VOCAB, LAYERS = 256, 16384, 3
NAMES = [f"model.layers.{i}.post_attention_layernorm.lam" for i in range(LAYERS)]


def checkpoint(program, norm, folder):
    (folder / "text.txt").write_text("some text to have data " * 2000)
    keys = dict(d=512, layers=LAYERS, heads=8, kv_heads=4, head_dim=64, mlp=1536, vocab=VOCAB)
    subprocess.run([program, "pretrain", *[f"model.{k}={v}" for k, v in keys.items()], f"norm.method={norm}", "data.tokenizer=bytes", f"data.seq_len={LENGTH}",
                    f"data.train={folder}/text.txt", "train.steps=1", "train.batch=1", "train.lr=1e-4", "device=cpu", "dtype=fp32", f"run.dir={folder}/run"],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return folder / "run/checkpoint-1"


def pytorch(model, tokens, device):
    model.zero_grad()
    logits = model(tokens[:, :-1].to(device)).logits.float()
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten().to(device)).backward()
    of = dict(model.named_parameters())
    return torch.stack([of[n].grad.double().flatten()[0].cpu() for n in NAMES])


def ours(program, model, tokens, device, folder):
    save_file({"tokens": tokens}, folder / "in.safetensors")
    subprocess.run([program, "forward", "--model", model, "--tokens", folder / "in.safetensors", "--out", folder / "out.safetensors", "--grads",
                    f"device={device}", "dtype=bf16"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    got = load_file(folder / "out.safetensors")
    return torch.stack([got["grad." + n].double().flatten()[0] for n in NAMES])


def report(exact, got, floor):
    """exact: batches × layers; got: the same for each program."""
    relative = {who: (g / exact - 1).abs() for who, g in got.items()}
    for who, g in got.items():
        rms, median = (g - exact).square().mean(0).sqrt(), relative[who].median(0).values
        print(f"{who:14} root mean square error {' '.join(f'{x:.1e}' for x in rms)}   median of the relative one {' '.join(f'{x:.1e}' for x in median)}")
    for who in got:
        for other in got:
            if who != other:
                within = (relative[who] <= (2 * relative[other]).clamp_min(floor)).all(1)
                print(f"{who} within twice the error of {other}, or {floor:g}: {int(within.sum())} of {len(within)} batches")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bhyt")
    parser.add_argument("--norm", default="bhyt_star")
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--floor", type=float, default=2e-2)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        at = checkpoint(args.bhyt, args.norm, folder)

        def load(dtype, attention):
            return transformers.AutoModelForCausalLM.from_pretrained(at, trust_remote_code=True, dtype=dtype, attn_implementation=attention).to(args.device)

        reference = load(torch.float32, "eager")
        low = {f"PyTorch {attention}": load(torch.bfloat16, attention) for attention in ("sdpa", "eager")}
        exact, got = [], {who: [] for who in ("bhyt", *low)}
        for batch in range(args.batches):
            tokens = torch.randint(VOCAB, (args.rows, LENGTH + 1), generator=torch.Generator().manual_seed(100 + batch))
            exact.append(pytorch(reference, tokens, args.device))
            got["bhyt"].append(ours(args.bhyt, at, tokens, args.device, folder))
            for who, model in low.items():
                got[who].append(pytorch(model, tokens, args.device))
            print(f"batch {batch + 1} of {args.batches}: {' '.join(f'{x:.2e}' for x in exact[-1])}", flush=True)
        report(torch.stack(exact), {who: torch.stack(g) for who, g in got.items()}, args.floor)


if __name__ == "__main__":
    main()
