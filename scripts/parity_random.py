#!/usr/bin/env python3
"""`bhyt forward` on random models of every method and option against double precision, and beside it what PyTorch in fp32 makes of the same
model. Prints, for each model, the largest error relative to the largest value of its tensor, and the tensor; at the end, how many models lie
beyond the bar.

usage: parity_random.py BHYT [--seeds N] [--bar 5e-5] [--only NAME ...]      (needs torch and safetensors; cases: make_golden.py)
"""
import argparse
import json
import pathlib
import tempfile

import make_golden
import parity
import torch
from safetensors.torch import save_file

SIZES = dict(d=64, layers=4, heads=4, kv=2, head_dim=16, mlp=176, vocab=257)
KEYS = dict(hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=176, vocab_size=257)
LENGTH = 32


def random_case(name, seed):
    """Shape, norm, config.json and fp32 weights, all of them of a size that makes every term count."""
    shape, norm, config = make_golden.all_cases()[name]
    shape = make_golden.Shape(**(vars(shape) | SIZES))
    config |= KEYS | {"tie_word_embeddings": shape.tied, "torch_dtype": "float32"}
    norm.seq_len = LENGTH
    if "norm" in config:
        config["norm"]["seq_len"] = LENGTH
    if norm.calibration:
        norm.calibration = config["norm"]["calibration"] = [*norm.calibration, *[1.1] * (shape.layers - len(norm.calibration))]
    w, generator = make_golden.parameters(shape, norm, seed), torch.Generator().manual_seed(seed)
    for name, value in w.items():
        mean, std = {".direction": (0, 0.1), ".gate": (1, 0.3)}.get(name[name.rfind("."):], (None, None))
        if value.dim() == 2:
            mean, std = 0, 0.7 if "embed" in name else 0.15
        if mean is not None:
            w[name] = mean + std * torch.randn(value.shape, generator=generator, dtype=torch.float64)
    return shape, norm, config, {k: v.float() for k, v in w.items()}


def rotate_in_double(x, theta, llama3, rotate=make_golden.rotate):
    return rotate(x.double(), theta, llama3).to(x.dtype)


def pytorch(weights, tokens, shape, norm, dtype):
    w = {k: v.to(dtype).requires_grad_(norm.learn_lambda or not k.endswith(".lam")) for k, v in weights.items()}
    logits, auxiliary = make_golden.forward(tokens[:, :-1], w, shape, norm)
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, shape.vocab), tokens[:, 1:].reshape(-1))
    (loss + norm.aux_loss * auxiliary).backward()
    return {"logits": logits.detach(), "loss": loss.detach().reshape(1)} | {"grad." + k: v.grad for k, v in w.items() if v.grad is not None}


def ours(program, weights, tokens, config):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "config.json").write_text(json.dumps(config))
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        save_file({"tokens": tokens}, folder / "tokens.safetensors")
        return parity.forward(program, folder, folder / "tokens.safetensors", [])


def worst(expected, got):
    return max(parity.worst_errors({k: v.numpy() for k, v in expected.items()}, got).values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bhyt")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--bar", type=float, default=5e-5)
    parser.add_argument("--only", nargs="*")
    args = parser.parse_args()
    make_golden.rotate = rotate_in_double
    beyond, count = [0, 0], 0
    for name in [n for n in make_golden.all_cases() if not n.startswith("ref_") and (not args.only or n in args.only)]:
        for seed in range(args.seeds):
            shape, norm, config, weights = random_case(name, seed)
            tokens = torch.randint(shape.vocab, (3, LENGTH + 1), generator=torch.Generator().manual_seed(seed))
            exact = pytorch(weights, tokens, shape, norm, torch.float64)
            here = worst(exact, ours(args.bhyt, weights, tokens, config))
            there = worst(exact, {k: v.numpy() for k, v in pytorch(weights, tokens, shape, norm, torch.float32).items()})
            count += 1
            beyond = [b + (e[0] > args.bar) for b, e in zip(beyond, (here, there))]
            print(f"{name:26} {seed:3}  bhyt {here[0]:.1e} {here[1].removeprefix('grad.'):52}  PyTorch {there[0]:.1e} {there[1].removeprefix('grad.')}", flush=True)
    print(f"beyond {args.bar:g}: bhyt {beyond[0]}, PyTorch {beyond[1]} of {count}")


if __name__ == "__main__":
    main()
