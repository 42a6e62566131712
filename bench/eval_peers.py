#!/usr/bin/env python3
"""Evaluation speed against lm-evaluation-harness on the same machine: the same documents through both, in turns.

usage: eval_peers.py PROGRAM MODEL DATA [--tasks A,B] [--limit N] [--shots K] [--seed S] [--batch-sizes 1,8,16] [--device cpu|cuda] [--dtype fp32|bf16]
                     [--threads N] [--rounds N] [--plain] [--share F] [--errors]
MODEL is a plain Llama checkpoint with its tokenizer, DATA what `bhyt eval --data` takes. The program goes first and leaves the rendered
requests in its --samples; the harness (its Hugging Face backend) scores those, with each of the batch sizes, and the fastest counts. --plain
takes a loop over padded batches with transformers in its place, for machines without the harness. --share F gives the peer that part of the
requests only, every 1/F-th document, and counts its documents per second. --errors adds how far the log-likelihoods of both are from those of
transformers in fp32: what rounding to --dtype costs each.
Run it with a Python that has torch, transformers and (without --plain) lm_eval.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time


def ours(a, folder):
    """(seconds, documents) of the program, with starting it and loading the model."""
    samples = os.path.join(folder, "samples.jsonl")
    command = [a.program, "eval", "--model", a.model, "--tasks", a.tasks, "--data", a.data, "--shots", str(a.shots), "--seed", str(a.seed),
               "--samples", samples, "--force", "--json", f"device={a.device}", f"dtype={a.dtype}"]
    command += ["--limit", str(a.limit)] if a.limit else []
    command += [f"threads={a.threads}"] if a.threads else []
    start = time.perf_counter()
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - start
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with {run.returncode}:\n{run.stderr}")
    with open(samples, encoding="utf-8", newline="") as f:
        return seconds, [json.loads(line) for line in f]


class Harness:
    """The harness's own scoring."""
    def __init__(self, a, batch_size):
        from lm_eval.api.instance import Instance
        from lm_eval.models.huggingface import HFLM
        self.instance = Instance
        self.lm = HFLM(pretrained=a.model, add_bos_token=True, batch_size=batch_size, device=a.device, dtype={"fp32": "float32", "bf16": "bfloat16"}[a.dtype])

    def score(self, pairs):
        asked = [self.instance(request_type="loglikelihood", doc={}, arguments=pair, idx=0) for pair in pairs]
        return [ll for ll, _ in self.lm.loglikelihood(asked, disable_tqdm=True)]


class Plain:
    """Padded batches of whole requests, the longest first."""
    def __init__(self, a, batch_size, dtype=None):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        self.torch, self.size, self.device = torch, batch_size, a.device
        self.tokenizer = AutoTokenizer.from_pretrained(a.model)
        self.model = AutoModelForCausalLM.from_pretrained(a.model, torch_dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[dtype or a.dtype]).to(a.device).eval()
        self.length = self.model.config.max_position_embeddings

    def encode(self, context, continuation):
        moved = len(context) - len(context.rstrip())
        if moved:
            context, continuation = context[:-moved], context[-moved:] + continuation
        before = self.tokenizer(context)["input_ids"]
        behind = self.tokenizer(context + continuation)["input_ids"][len(before):]
        return (before + behind)[-(self.length + 1):], len(behind)

    def score(self, pairs):
        torch = self.torch
        encoded = [self.encode(*pair) for pair in pairs]
        order = sorted(range(len(pairs)), key=lambda i: -len(encoded[i][0]))
        result = [0.0] * len(pairs)
        with torch.inference_mode():
            for first in range(0, len(order), self.size):
                some = order[first:first + self.size]
                width = max(len(encoded[i][0]) - 1 for i in some)
                ids = torch.zeros(len(some), width, dtype=torch.long)
                for r, i in enumerate(some):
                    ids[r, :len(encoded[i][0]) - 1] = torch.tensor(encoded[i][0][:-1])
                logits = self.model(ids.to(self.device)).logits
                for r, i in enumerate(some):
                    whole, count = encoded[i]
                    end = len(whole) - 1
                    rows = torch.log_softmax(logits[r, end - count:end].float(), -1)
                    result[i] = rows.gather(1, torch.tensor(whole[-count:], device=self.device)[:, None]).sum().item()
        return result


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program"), p.add_argument("model"), p.add_argument("data")
    p.add_argument("--tasks", default="paper"), p.add_argument("--limit", type=int, default=200), p.add_argument("--shots", type=int, default=3)
    p.add_argument("--seed", type=int, default=42), p.add_argument("--batch-sizes", default="1,8,16,32"), p.add_argument("--device", default="cpu")
    p.add_argument("--dtype", default="fp32"), p.add_argument("--threads", type=int, default=0), p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--plain", action="store_true"), p.add_argument("--share", type=float, default=1), p.add_argument("--errors", action="store_true")
    a = p.parse_args()
    if a.threads:
        import torch
        torch.set_num_threads(a.threads)
    sizes = [int(n) for n in a.batch_sizes.split(",")]
    peer = Plain if a.plain else Harness
    name = "transformers, padded batches" if a.plain else "lm-evaluation-harness"
    mine, theirs, worst = [], {n: [] for n in sizes}, 0.0
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(a.rounds):
            seconds, documents = ours(a, folder)
            mine.append(len(documents) / seconds)
            step = max(1, round(1 / a.share))
            some = documents[::step]
            pairs = [(q["context"], q["continuation"]) for d in some for q in d["requests"]]
            for n in sizes:
                ready = peer(a, n)  # importing and loading are not counted against it
                start = time.perf_counter()
                scores = ready.score(pairs)
                theirs[n].append(len(some) / (time.perf_counter() - start))
                own = [q["loglikelihood"] for d in some for q in d["requests"]]
                worst = max([worst] + [abs(x - y) for x, y in zip(scores, own)])
    best = max(sizes, key=lambda n: statistics.median(theirs[n]))
    rate, peer_rate = statistics.median(mine), statistics.median(theirs[best])
    print(f"{a.tasks}, {a.shots}-shot, {len(documents)} documents, {len(pairs)} requests, {a.device}, {a.dtype}: medians of {a.rounds} rounds")
    print(f"bhyt                           {rate:9.2f} documents/s")
    for n in sizes:
        print(f"{name + f', batch {n}':<30} {statistics.median(theirs[n]):9.2f} documents/s")
    print(f"{rate / peer_rate:.2f} × the fastest of them; largest difference of a log-likelihood {worst:.2e}")
    if a.errors:
        exact = Plain(a, sizes[0], "fp32").score(pairs)
        for who, values in (("bhyt", own), (name, scores)):
            off = [x - y for x, y in zip(values, exact)]
            rms = statistics.fmean(e * e for e in off) ** 0.5
            print(f"{who}, {a.dtype}: off transformers in fp32 by {rms:.3e} rms, {max(map(abs, off)):.3e} at most, {statistics.fmean(off):+.1e} on average")


if __name__ == "__main__":
    main()
