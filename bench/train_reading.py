#!/usr/bin/env python3
"""The recipe of docs/results.md in plain PyTorch, for a second reading of its losses: RMSNorm, AdamW, packed rows of token files.

usage: train_reading.py TRAIN.tok VALID.tok [--lr R] [--seeds 0 1] [--streams fp32 bf16] [--sqrt-d] [--device cuda|cpu] [--no-compile]
                        [--layers N] [--d N] [--heads N] [--mlp N] [--seq N] [--batch N] [--steps N]
Parameters and moments are fp32, matrix products bf16 (autocast). --streams says in which type the residual stream is kept between the
blocks: fp32, as autocast leaves it, or bf16, as `bhyt pretrain` with dtype=bf16 has it. Prints a JSON line for each run: the validation
loss, and how long the stream is behind each block at the end.
"""
import argparse
import json
import math
import time

import numpy as np
import torch
import torch.nn.functional as F


def tokens_of(path):
    header = np.fromfile(path, dtype=np.uint8, count=128).tobytes()
    if header[:8] != b"BHYTTOK\n":
        raise SystemExit(f"{path}: expected a token file of `bhyt data pack`")
    bytes_each, count, vocab = (int.from_bytes(header[a:b], "little") for a, b in ((12, 16), (16, 24), (32, 40)))
    at = int.from_bytes(header[72:80], "little")
    return np.fromfile(path, dtype={2: np.uint16, 4: np.uint32}[bytes_each], count=count, offset=at).astype(np.int64), vocab


class Model(torch.nn.Module):
    def __init__(self, a, vocab, stream):
        super().__init__()
        self.a, self.stream, self.dim = a, stream, a.d // a.heads
        weight = lambda rows, cols: torch.nn.Parameter(torch.randn(rows, cols) * 0.02)
        ones = lambda: torch.nn.Parameter(torch.ones(a.d))
        self.embedding, self.last = weight(vocab, a.d), ones()
        self.layers = torch.nn.ModuleList()
        for _ in range(a.layers):
            m = torch.nn.Module()
            m.n1, m.n2, m.qkv, m.o, m.up, m.down = ones(), ones(), weight(3 * a.d, a.d), weight(a.d, a.d), weight(2 * a.mlp, a.d), weight(a.d, a.mlp)
            self.layers.append(m)
        angle = torch.arange(a.seq)[:, None].double() * 500000.0 ** (-torch.arange(0, self.dim, 2).double() / self.dim)[None]
        self.register_buffer("cos", torch.cat([angle.cos()] * 2, -1).float())
        self.register_buffer("sin", torch.cat([angle.sin()] * 2, -1).float())

    def norm(self, x, w):
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * w

    def rotate(self, x):
        x = x.float()
        half = torch.cat([-x[..., self.dim // 2:], x[..., :self.dim // 2]], -1)
        return (x * self.cos + half * self.sin).bfloat16()

    def forward(self, tokens, targets):
        x = F.embedding(tokens, self.embedding).to(self.stream)
        if self.a.sqrt_d:
            x = x * math.sqrt(self.a.d)
        b, t, d = x.shape
        norms = [x.float().norm(dim=-1).mean()]
        for m in self.layers:
            q, k, v = F.linear(self.norm(x, m.n1), m.qkv).view(b, t, 3, -1, self.dim).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
            x = x + F.linear(y.transpose(1, 2).reshape(b, t, d), m.o).to(self.stream)
            gate, up = F.linear(self.norm(x, m.n2), m.up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, m.down).to(self.stream)
            norms.append(x.float().norm(dim=-1).mean())
        logits = F.linear(self.norm(x, self.last), self.embedding)
        return F.cross_entropy(logits.float().view(b * t, -1), targets.reshape(-1)), torch.stack(norms).detach()


def train(a, seed, stream, data, valid, vocab):
    torch.manual_seed(seed)
    device = torch.device(a.device)
    model = Model(a, vocab, {"fp32": torch.float32, "bf16": torch.bfloat16}[stream]).to(device)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() != 2]
    adam = torch.optim.AdamW([dict(params=matrices, weight_decay=0.1), dict(params=rest, weight_decay=0.0)], betas=(0.9, 0.95), eps=1e-8,
                             fused=a.device == "cuda")
    step_of = torch.compile(model) if a.compile else model

    def loss_of(rows, where, run):
        part = torch.from_numpy(np.stack([where[r * a.seq:r * a.seq + a.seq + 1] for r in rows])).to(device, non_blocking=True)
        with torch.autocast(a.device, dtype=torch.bfloat16):
            return run(part[:, :-1].contiguous(), part[:, 1:].contiguous())

    rows, order = (len(data) - 1) // a.seq, []
    random = np.random.default_rng(seed)
    warm, begin, sums = math.ceil(0.1 * a.steps), time.time(), []
    for step in range(1, a.steps + 1):
        while len(order) < a.batch:
            order = np.concatenate([order, random.permutation(rows)]).astype(np.int64)
        own, order = order[:a.batch], order[a.batch:]
        rate = a.lr * step / warm if step <= warm else a.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - warm) / (a.steps - warm))))
        for g in adam.param_groups:
            g["lr"] = rate
        loss, norms = loss_of(own, data, step_of)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)
        sums.append(loss.detach())
    seconds, total, count = time.time() - begin, 0.0, 0
    with torch.no_grad():
        for first in range(0, (len(valid) - 1) // a.seq - a.batch + 1, a.batch):
            total += float(loss_of(range(first, first + a.batch), valid, model)[0])
            count += 1
    print(json.dumps(dict(norm="rmsnorm", lr=a.lr, sqrt_d=a.sqrt_d, stream=stream, seed=seed, valid_loss=total / count,
                          train_loss=float(torch.stack(sums[-25:]).mean()), loss_at_200=float(torch.stack(sums[175:200]).mean()) if a.steps > 200 else None,
                          stream_norms=[round(v, 2) for v in norms.tolist()], seconds=seconds, torch=torch.__version__)), flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("train"), p.add_argument("valid")
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--seeds", type=int, nargs="+", default=[0])
    p.add_argument("--streams", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    p.add_argument("--sqrt-d", action="store_true")
    p.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    p.add_argument("--no-compile", dest="compile", action="store_false")
    for name, value in dict(layers=16, d=512, heads=8, mlp=1376, seq=1024, batch=32, steps=1374).items():
        p.add_argument(f"--{name}", type=int, default=value)
    a = p.parse_args()
    data, vocab = tokens_of(a.train)
    valid, _ = tokens_of(a.valid)
    for seed in a.seeds:
        for stream in a.streams:
            train(a, seed, stream, data, valid, vocab)


if __name__ == "__main__":
    main()
