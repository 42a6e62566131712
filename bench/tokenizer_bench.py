#!/usr/bin/env python3
"""Our tokenizer beside `tokenizers` and `tiktoken` on the same machine, in one run: encoding and training.

    cmake -B build -DBHYT_BENCH=ON && cmake --build build --target bhyt bhyt_bench_tokenizer
    python bench/tokenizer_bench.py --build build --data DIR [--train] [--repeats 10]

Each figure is the best of several; wall time and processor time are both given, because other work on the machine spoils the former.
Needs Python with tokenizers and tiktoken; nothing of ours does.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))


def best(repeats, work):
    wall, cpu = [], []
    for _ in range(repeats):
        w, c = time.perf_counter(), time.process_time()
        work()
        wall.append(time.perf_counter() - w)
        cpu.append(time.process_time() - c)
    return min(wall), min(cpu)


def oracle_worker(args):
    """Runs in a process of its own, so that the number of threads can be set before the library starts."""
    import tokenizer_oracles as oracle
    data = Path(args.data)
    texts = oracle.documents(data / "text" / args.worker_file)
    size = sum(len(t.encode()) for t in texts)
    if args.worker == "train":
        from make_tokenizer_golden import train
        special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
        made = []
        wall, cpu = best(1, lambda: made.append(train(texts, 16384, special)))
        print(json.dumps({"wall": wall, "cpu": cpu, "merges": json.loads(made[0].to_str())["model"]["merges"]}))
        return
    if args.worker == "tiktoken":
        t = oracle.llama3_tiktoken(data)
        work = lambda: [t.encode_ordinary(x) for x in texts]
    else:
        t = oracle.llama3(data) if args.worker == "llama3" else oracle.gpt2(data)
        work = lambda: t.encode_batch_fast(texts, add_special_tokens=False)
    wall, cpu = best(args.repeats, work)
    print(json.dumps({"wall": size / wall / 1e6, "cpu": size / cpu / 1e6}))


def worker(args, name, threads, file="wikipedia_valid.jsonl.zst"):
    env = dict(os.environ, RAYON_NUM_THREADS=str(threads), TOKENIZERS_PARALLELISM="true" if threads > 1 else "false")
    command = [sys.executable, __file__, "--worker", name, "--worker-file", file, "--data", args.data, "--repeats", str(args.repeats)]
    return json.loads(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout)


def row(what, threads, wall, cpu, unit):
    print(f"| {what} | {threads} | {wall:.1f} {unit} | {cpu:.1f} {unit} |", flush=True)


def encoding(args):
    print("| encoding wikipedia_valid | threads | by wall time | by processor time |\n|---|---:|---:|---:|")
    threads = [1] + ([os.cpu_count()] if os.cpu_count() > 1 else [])
    for name in ("llama3", "gpt2"):
        command = [f"{args.build}/bench/bhyt_bench_tokenizer", f"{args.data}/tokenizers/{name}", f"{args.data}/text/wikipedia_valid.jsonl.zst",
                   str(args.repeats)]
        for run in json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["runs"]:
            row(f"bhyt, {name}", run["threads"], run["mb_s"], run["mb_per_cpu_s"], "MB/s")
        for n in threads:
            r = worker(args, name, n)
            row(f"tokenizers, {name}", n, r["wall"], r["cpu"], "MB/s")
    r = worker(args, "tiktoken", 1)
    row("tiktoken, llama3", 1, r["wall"], r["cpu"], "MB/s")


def training(args):
    print("\n| training 16,384 tokens on wikipedia_a (94 MB) | threads | wall time | processor time |\n|---|---:|---:|---:|")
    file = f"{args.data}/text/wikipedia_a.jsonl.zst"
    for n in sorted({1, os.cpu_count()}):
        with tempfile.TemporaryDirectory() as out:
            w, c = time.perf_counter(), os.times()
            subprocess.run([f"{args.build}/bhyt", "tokenizer", "train", "--vocab", "16384", "--threads", str(n), "--out", out, file], check=True,
                           capture_output=True)
            d = os.times()
            cpu = d.children_user - c.children_user + d.children_system - c.children_system
            row("bhyt, reading and unpacking included", n, time.perf_counter() - w, cpu, "s")
            ours = json.loads(Path(out, "tokenizer.json").read_text())["model"]["merges"]
        theirs = worker(args, "train", n, "wikipedia_a.jsonl.zst")
        row("tokenizers, texts already in memory", n, theirs["wall"], theirs["cpu"], "s")
        print(f"\nmerges {'equal' if ours == theirs['merges'] else 'DIFFER'}: {len(ours)} and {len(theirs['merges'])}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--data", required=True)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--train", action="store_true", help="also train, which takes minutes")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--worker-file", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return oracle_worker(args)
    encoding(args)
    if args.train:
        training(args)


if __name__ == "__main__":
    main()
