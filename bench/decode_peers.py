#!/usr/bin/env python3
"""Decoding speed against a compiled PyTorch loop on the same machine: Llama shapes, random weights, a token of every sequence at a time.

usage: decode_peers.py PROGRAM [--preset small|llama-374m|llama-1b|llama-3b] [--batches 1 8] [--context N] [--device cpu|cuda] [--dtype bf16|fp32]
                       [--rounds N] [--steps N] [--threads N] [--no-compile] [--methods rmsnorm bhyt ...]
                       [--new-tokens N ... [--warmup N] [--timed N] [--reps N]]
The peer is what one writes for speed in PyTorch: a plain module over weights that are laid out for it (q, k, v in one product, gate and up in
one), a cache of fixed length, scaled_dot_product_attention, the likeliest token taken on the device, the whole step under torch.compile with CUDA graphs
(mode reduce-overhead, on a CPU the default mode). Ours is `bhyt bench decode`, whose tokens are given. By turns; prints a JSON line for each
measurement and a table of ratios at the end. With --new-tokens it is the peer alone, by the protocol of `bhyt bench generation`: prompts
of --context tokens, compiled too, then as many new tokens; each number of them in runs of its own.
"""
import argparse
import json
import statistics
import subprocess
import sys
import time

# The program's presets.
SHAPES = {
    "small": dict(d=512, layers=16, heads=8, kv_heads=4, head_dim=64, mlp=1408, vocab=8192),
    "llama-374m": dict(d=1024, layers=16, heads=16, kv_heads=4, head_dim=64, mlp=4096, vocab=128256),
    "llama-1b": dict(d=2048, layers=16, heads=32, kv_heads=8, head_dim=64, mlp=8192, vocab=128256),
    "llama-3b": dict(d=3072, layers=28, heads=24, kv_heads=8, head_dim=128, mlp=8192, vocab=128256),
}


def ours(a, batch, method):
    words = [a.program, "bench", "decode", "--json", "--reps", str(a.reps), f"model.preset={a.preset}", f"train.batch={batch}",
             f"data.seq_len={a.context}", f"norm.method={method}", f"device={a.device}", f"dtype={a.dtype}"]
    words += [f"threads={a.threads}"] if a.threads else []
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed with {done.returncode}:\n{done.stderr}")
    r = json.loads(done.stdout)[0]
    return dict(who="bhyt", method=method, batch=batch, ms=r["ms"], tok_s=r["tok_s"], of_limit=r["fraction"])


def peer(a, s, dtype):
    """A function that decodes with `batch` sequences behind the context, and returns milliseconds a step; or generates, with --new-tokens."""
    import torch
    import torch.nn.functional as F

    device = torch.device(a.device)
    if a.device == "cpu" and a.threads:
        torch.set_num_threads(a.threads)

    def weight(rows, cols):
        return torch.randn(rows, cols, device=device, dtype=torch.float32).mul_(0.02).to(dtype)

    d, heads, kv, hd = s["d"], s["heads"], s["kv_heads"], s["head_dim"]
    embedding, last = weight(s["vocab"], d), torch.ones(d, device=device, dtype=dtype)
    layers = [dict(n1=torch.ones(d, device=device, dtype=dtype), n2=torch.ones(d, device=device, dtype=dtype), qkv=weight((heads + 2 * kv) * hd, d),
                   o=weight(d, heads * hd), gate_up=weight(2 * s["mlp"], d), down=weight(d, s["mlp"])) for _ in range(s["layers"])]
    longest = (a.context + max([a.steps + 8] + a.new_tokens) + 15) // 16 * 16
    angle = torch.arange(longest, device=device).float()[:, None] * (1e4 ** (-torch.arange(0, hd, 2, device=device).float() / hd))[None]
    cos, sin = (torch.cat([f(angle)] * 2, -1).to(dtype) for f in (torch.cos, torch.sin))

    # CUDA graphs copy what they are given, unless it stays where it is, and write to nothing else.
    stays = torch._dynamo.mark_static_address
    for t in [embedding, last, cos, sin] + [t for w in layers for t in w.values()]:
        stays(t)

    def norm(x, w):
        return F.rms_norm(x, (d,), w, 1e-5)

    def rotate(x, at):
        half = torch.cat([-x[..., hd // 2:], x[..., :hd // 2]], -1)
        return x * cos[at] + half * sin[at]

    def step(tokens, at, caches):
        batch = tokens.shape[0]
        x = F.embedding(tokens, embedding)
        seen = torch.arange(longest, device=device)[None, None, None] <= at
        for w, (keys, values) in zip(layers, caches):
            q, k, v = (norm(x, w["n1"]) @ w["qkv"].t()).view(batch, -1, hd).split([heads, kv, kv], 1)
            q, k = rotate(q, at), rotate(k, at)
            keys[:, :, at] = k[:, :, None]
            values[:, :, at] = v[:, :, None]
            # The query heads of a group as queries of one head, for they see the same keys: kernels that take masks know no groups.
            y = F.scaled_dot_product_attention(q.view(batch, kv, heads // kv, hd), keys, values, attn_mask=seen)
            x = x + y.reshape(batch, heads * hd) @ w["o"].t()
            gate, up = (norm(x, w["n2"]) @ w["gate_up"].t()).chunk(2, -1)
            x = x + (F.silu(gate) * up) @ w["down"].t()
        return (norm(x, last) @ embedding.t()).argmax(-1)

    def prompt(tokens, caches):
        batch, length = tokens.shape
        x = F.embedding(tokens, embedding)
        at = torch.arange(length, device=device)
        for w, (keys, values) in zip(layers, caches):
            q, k, v = (norm(x, w["n1"]) @ w["qkv"].t()).view(batch, length, -1, hd).transpose(1, 2).split([heads, kv, kv], 1)
            q, k = rotate(q, at), rotate(k, at)
            keys[:, :, :length] = k
            values[:, :, :length] = v
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + y.transpose(1, 2).reshape(batch, length, heads * hd) @ w["o"].t()
            gate, up = (norm(x, w["n2"]) @ w["gate_up"].t()).chunk(2, -1)
            x = x + (F.silu(gate) * up) @ w["down"].t()
        return (norm(x[:, -1], last) @ embedding.t()).argmax(-1)

    if a.compile:
        step = torch.compile(step, fullgraph=True, dynamic=False, **({"mode": "reduce-overhead"} if a.device == "cuda" else {}))
        prompt = torch.compile(prompt, fullgraph=True, dynamic=False)
    wait = torch.cuda.synchronize if a.device == "cuda" else lambda: None
    name = "torch " + torch.__version__ + (" compiled" if a.compile else "")

    def new_caches(batch):
        caches = [tuple(torch.randn(batch, kv, longest, hd, device=device).to(dtype) for _ in range(2)) for _ in range(s["layers"])]
        for t in [t for cache in caches for t in cache]:
            stays(t)
        return caches

    def generate(batch):
        """Tokens a second with prompts and answers of every length in turn, as the protocol counts them."""
        caches = new_caches(batch)
        tokens = torch.randint(s["vocab"], (batch, a.context), device=device)
        places = list(torch.arange(longest, device=device)[:, None].unbind())

        def answer(length):
            token = prompt(tokens, caches)
            for i in range(a.context, a.context + length - 1):
                token = step(token, places[i], caches).clone()

        with torch.no_grad():
            for length in a.new_tokens:
                for _ in range(a.warmup):
                    answer(length)
                rates = []
                for _ in range(a.reps):
                    wait()
                    begin = time.perf_counter()
                    for _ in range(a.timed):
                        answer(length)
                        wait()
                    rates.append(batch * length * a.timed / (time.perf_counter() - begin))
                spread = statistics.stdev(rates) if len(rates) > 1 else 0.0
                print(json.dumps(dict(who=name, method="rmsnorm", batch=batch, context=a.context, new_tokens=length, cache=longest, warmup=a.warmup,
                                      timed=a.timed, tok_s_mean=statistics.mean(rates), tok_s_std=spread)), flush=True)

    def decode(batch):
        caches = new_caches(batch)
        tokens = torch.zeros(batch, dtype=torch.long, device=device)
        at = torch.tensor([a.context], device=device)
        with torch.no_grad():
            for i in range(8):
                tokens = step(tokens, at + i, caches).clone()
            best = []
            for _ in range(3):
                wait()
                begin = time.perf_counter()
                for i in range(a.steps):
                    tokens = step(tokens, at + i, caches).clone()
                wait()
                best.append((time.perf_counter() - begin) / a.steps * 1e3)
        ms = statistics.median(best)
        return dict(who=name, method="rmsnorm", batch=batch, ms=ms, tok_s=batch / ms * 1e3)
    return generate if a.new_tokens else decode


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("--preset", default="llama-1b", choices=sorted(SHAPES))
    p.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    p.add_argument("--context", type=int, default=512)
    p.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    p.add_argument("--dtype", default="bf16", choices=["bf16", "fp32"])
    p.add_argument("--methods", nargs="+", default=["rmsnorm"])
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--steps", type=int, default=64)
    p.add_argument("--reps", type=int, default=20)
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--new-tokens", type=int, nargs="+", default=[])
    p.add_argument("--warmup", type=int, default=8)
    p.add_argument("--timed", type=int, default=32)
    p.add_argument("--no-compile", dest="compile", action="store_false")
    a = p.parse_args()
    import torch
    decode = peer(a, SHAPES[a.preset], {"bf16": torch.bfloat16, "fp32": torch.float32}[a.dtype])
    if a.new_tokens:
        for batch in a.batches:
            decode(batch)
        return
    taken = []
    for _ in range(a.rounds):
        for batch in a.batches:
            for line in [decode(batch)] + [ours(a, batch, m) for m in a.methods]:
                print(json.dumps(line), flush=True)
                taken.append(line)
    for batch in a.batches:
        def median(who, method):
            return statistics.median(t["tok_s"] for t in taken if t["batch"] == batch and t["who"].startswith(who) and t["method"] == method)
        theirs = median("torch", "rmsnorm")
        for m in a.methods:
            print(f"{batch} sequences behind {a.context}: bhyt {m} {median('bhyt', m):.1f} tok/s, PyTorch {theirs:.1f}: {median('bhyt', m) / theirs:.2f} ×")


if __name__ == "__main__":
    main()
