#!/usr/bin/env python3
"""Fine-tuning speed against a PyTorch loop on the same machine: the same model, conversations, batches and steps.

usage: sft_peers.py PROGRAM MODEL TRAIN [--template T] [--seq-len N] [--batch N] [--steps N] [--lora RANK] [--device cpu|cuda] [--dtype fp32|bf16]
                    [--compile layers|whole|none] [--checkpointing] [--threads N]
MODEL is a plain Llama checkpoint with its tokenizer, TRAIN conversations. The peer is transformers' Llama, compiled, on rows that are padded
on the right to the longest of a batch, rounded up to 8, as transformers' Trainer feeds it: fp32 weights under bf16 autocast with AdamW (fused
on a GPU); with --lora the linear layers have PEFT's adapters over frozen weights in the run's type. Both take the examples in PyTorch's order
(seed 42). --compile layers (the default) compiles the decoder layer, which takes half a minute; whole compiles the model in one piece, which takes
minutes with rows of changing length. Prints one JSON line each: conversations and tokens per second over the steps behind the first few, and
the peak memory on a GPU.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed with {done.returncode}:\n{done.stderr}")
    return done


def examples(a, folder):
    out = os.path.join(folder, "dump.jsonl")
    run([a.program, "sft", "--dry-run", f"data.train={a.train}", f"data.tokenizer={a.model}", f"data.template={a.template}",
         f"data.seq_len={a.seq_len}", "--dump", out, "--quiet"])
    with open(out, encoding="utf-8") as f:
        return [(e["input_ids"], e["labels"]) for e in map(json.loads, f)]


def ours(a, folder):
    run_dir = os.path.join(folder, "run")
    words = [a.program, "sft", f"model.init={a.model}", f"data.train={a.train}", f"data.template={a.template}", f"data.seq_len={a.seq_len}",
             f"train.batch={a.batch}", f"train.steps={a.steps}", "train.lr=1e-5", "train.log_every=1", "train.save_every=0", "data.shuffle=torch",
             "run.seed=42", f"run.dir={run_dir}", f"device={a.device}", f"dtype={a.dtype}", "--quiet"]
    words += [f"lora.rank={a.lora}", f"lora.alpha={2 * a.lora}"] if a.lora else []
    words += [f"threads={a.threads}"] if a.threads else []
    words += [f"train.micro_batch={a.micro_batch}"] if a.micro_batch else []
    run(words)
    with open(os.path.join(run_dir, "metrics.jsonl"), encoding="utf-8") as f:
        lines = [l for l in map(json.loads, f) if "step_ms" in l]
    with open(os.path.join(run_dir, "log.txt"), encoding="utf-8") as f:
        memory = [l.strip() for l in f if "memory" in l]
    return [l["step_ms"] / 1e3 for l in lines], [l["loss"] for l in lines], (memory or [""])[0]


def order(n, seed, epoch):
    import torch
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed + epoch)).tolist()


def batches(a, rows):
    n = len(rows)
    per_epoch = math.ceil(n / a.batch)
    for step in range(a.steps):
        epoch, at = divmod(step, per_epoch)
        yield [rows[i] for i in order(n, 42, epoch)[at * a.batch:(at + 1) * a.batch]]


def adapters(model, rank, torch):
    class Lora(torch.nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base
            self.a = torch.nn.Parameter(torch.empty(rank, base.in_features, device=base.weight.device).uniform_(-1 / base.in_features ** 0.5, 1 / base.in_features ** 0.5))
            self.b = torch.nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))

        def forward(self, x):
            return self.base(x) + 2 * torch.nn.functional.linear(torch.nn.functional.linear(x, self.a), self.b)
    for p in model.parameters():
        p.requires_grad_(False)
    for layer in model.model.layers:
        for part, names in ((layer.self_attn, ("q_proj", "k_proj", "v_proj", "o_proj")), (layer.mlp, ("gate_proj", "up_proj", "down_proj"))):
            for name in names:
                setattr(part, name, Lora(getattr(part, name)))


def theirs(a, rows):
    import torch
    from transformers import AutoModelForCausalLM
    if a.threads:
        torch.set_num_threads(a.threads)
    torch.backends.cuda.matmul.allow_tf32 = True
    low = a.dtype == "bf16"
    held = torch.bfloat16 if low and a.lora else torch.float32
    model = AutoModelForCausalLM.from_pretrained(a.model, torch_dtype=held, attn_implementation="sdpa").to(a.device).train()
    if a.lora:
        adapters(model, a.lora, torch)
    if a.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, betas=(0.9, 0.999), weight_decay=0.1, fused=a.device == "cuda")
    if a.compile == "layers":
        for layer in model.model.layers:
            layer.compile(dynamic=True)
    step_model = torch.compile(model, dynamic=True) if a.compile == "whole" else model
    seconds, losses = [], []
    for batch in batches(a, rows):
        start = time.perf_counter()
        width = (max(len(ids) for ids, _ in batch) + 7) // 8 * 8
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        labels = torch.full((len(batch), width), -100)
        for r, (i, l) in enumerate(batch):
            ids[r, :len(i)], labels[r, :len(l)] = torch.tensor(i), torch.tensor(l)
        ids, labels = ids.to(a.device), labels.to(a.device)
        with torch.autocast(a.device, torch.bfloat16, enabled=low):
            loss = step_model(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() / 2 ** 30 if a.device == "cuda" else None
    return seconds, losses, peak


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program"), p.add_argument("model"), p.add_argument("train")
    p.add_argument("--template", default="llama3"), p.add_argument("--seq-len", type=int, default=2048), p.add_argument("--batch", type=int, default=16)
    p.add_argument("--steps", type=int, default=20), p.add_argument("--lora", type=int, default=0), p.add_argument("--device", default="cpu")
    p.add_argument("--dtype", default="fp32"), p.add_argument("--compile", default="layers", choices=["layers", "whole", "none"]), p.add_argument("--threads", type=int, default=0)
    p.add_argument("--checkpointing", action="store_true"), p.add_argument("--skip", type=int, default=4), p.add_argument("--micro-batch", type=int, default=0)
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = examples(a, folder)
        mine, my_losses, memory = ours(a, folder)
    other, other_losses, peak = theirs(a, rows)
    sizes = [(len(b), sum(len(i) for i, _ in b)) for b in batches(a, rows)][a.skip:]
    result = []
    for name, seconds, losses, used in (("bhyt", mine, my_losses, memory), ("transformers", other, other_losses, peak)):
        spent = sum(seconds[a.skip:])
        result.append(sum(n for n, _ in sizes) / spent)
        print(json.dumps({"program": name, "conversations_per_s": round(result[-1], 2), "tokens_per_s": round(sum(t for _, t in sizes) / spent),
                          "first_loss": losses[0], "last_loss": losses[-1], "memory": used}))
    print(json.dumps({"ratio": round(result[0] / result[1], 3), "steps": a.steps - a.skip, "lora": a.lora, "compile": a.compile, "device": a.device, "dtype": a.dtype}))


main()
