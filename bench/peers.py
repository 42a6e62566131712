#!/usr/bin/env python3
"""Training speed and memory against PyTorch on the same machine, in turns: ours, theirs, ours, theirs, …

usage: peers.py PROGRAM PEER_SCRIPT [--rounds N] [--threads N] [--dtypes fp32 bf16] [--compile]
PEER_SCRIPT prints one JSON line per measurement with `tok_s` and takes: train --preset --batch --seq --threads --dtype --reps [--compile].
Run it with a Python that has torch and transformers: `make bench` does when BHYT_PEERS_PYTHON and BHYT_PEERS name them.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys


def run(command):
    """(stdout, peak resident bytes) of a command; ends the program when it fails."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        out, err = p.stdout.read(), p.stderr.read()
        _, status, usage = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
    if p.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with {p.returncode}:\n{err}")
    return out, usage.ru_maxrss * 1024


def ours(a, dtype):
    out, _ = run([a.program, "bench", "train", "--json", "--reps", str(a.reps), f"model.preset={a.preset}", f"train.batch={a.batch}",
                  f"data.seq_len={a.seq}", f"threads={a.threads}", f"dtype={dtype}", f"norm.method={a.method}"])
    r = json.loads(out)[0]
    return r["tok_s"], r["peak_rss_bytes"], r["fraction"]


def theirs(a, dtype, compiled):
    out, memory = run([sys.executable, a.peer, "train", "--preset", a.preset, "--batch", str(a.batch), "--seq", str(a.seq), "--threads", str(a.threads),
                       "--dtype", dtype, "--reps", str(a.reps)] + (["--compile"] if compiled else []))
    return json.loads(out.strip().splitlines()[-1])["tok_s"], memory


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program"), p.add_argument("peer")
    p.add_argument("--rounds", type=int, default=3), p.add_argument("--reps", type=int, default=3), p.add_argument("--threads", type=int, default=2)
    p.add_argument("--preset", default="small"), p.add_argument("--batch", type=int, default=8), p.add_argument("--seq", type=int, default=256)
    p.add_argument("--method", default="rmsnorm"), p.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"])
    p.add_argument("--compile", action="store_true", help="torch.compile the peer too")
    a = p.parse_args()
    variants = [False, True] if a.compile else [False]
    print(f"training {a.preset} {a.batch}×{a.seq}, {a.threads} threads, ours with {a.method}: medians of {a.rounds} rounds in turns")
    for dtype in a.dtypes:
        us, them = [], {v: [] for v in variants}
        for _ in range(a.rounds):
            us.append(ours(a, dtype))
            for v in variants:
                them[v].append(theirs(a, dtype, v))
        rate, memory, fraction = (statistics.median(x) for x in zip(*us))
        print(f"{dtype}  bhyt {rate:8.1f} tok/s  {memory / 2**20:6.0f} MiB  {100 * fraction:.1f}% of its matrix products")
        for v in variants:
            peer_rate, peer_memory = (statistics.median(x) for x in zip(*them[v]))
            name = "torch.compile" if v else "torch eager"
            print(f"{dtype}  {name} {peer_rate:8.1f} tok/s  {peer_memory / 2**20:6.0f} MiB   bhyt is {rate / peer_rate:.2f} × as fast", flush=True)


if __name__ == "__main__":
    main()
