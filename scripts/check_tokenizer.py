#!/usr/bin/env python3
"""Compares the program itself with `tokenizers`, `tiktoken` and `transformers`, text by text and merge by merge.

    python scripts/check_tokenizer.py --program build/bhyt --data DIR [--train-large]

Checks: ids of the corpora and of fuzzed strings for Llama-3 and GPT-2; that what `tokenizer convert` and `tokenizer train` write loads in
transformers and gives the ids of the program, for every kind; that training gives the merges of `tokenizers` (wikipedia_valid at 4,096
tokens; with --train-large wikipedia_a at 16,384, which takes a while). Exits with 1 if anything differs.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import tokenizer_oracles as oracle
from make_tokenizer_golden import TEXTS, train

failures = 0


def report(what, ok, detail=""):
    global failures
    failures += not ok
    print(f"{'equal  ' if ok else 'DIFFERS'}  {what}  {detail}", flush=True)


def run(program, *args, stdin=b""):
    return subprocess.run([program, "tokenizer", *map(str, args)], input=stdin, check=True, capture_output=True).stdout


def ours(program, tokenizer, text, special=True):
    flags = [] if special else ["--no-special"]
    return json.loads(run(program, "encode", "--tokenizer", tokenizer, *flags, stdin=text.encode()))


def check_ids(program, data):
    fuzz = "\n".join(oracle.fuzz_strings(0, 20_000))
    tiktoken = oracle.llama3_tiktoken(data)
    for name, tokenizer in (("llama3", oracle.llama3(data)), ("gpt2", oracle.gpt2(data))):
        texts = {corpus: "\n\n".join(oracle.documents(data / path)) for corpus, path in oracle.CORPORA.items()}
        for what, text in {**texts, "20,000 fuzzed strings as one": fuzz}.items():
            for special in (True, False):
                want = oracle.encode(tokenizer, [text], special)[0]
                if name == "llama3" and not special:
                    assert want == tiktoken.encode(text, disallowed_special=())
                got = ours(program, data / "tokenizers" / name, text, special)
                report(f"{name}, {what}, {'special' if special else 'plain'}", got == want, f"{len(want)} ids")


def check_transformers(program, data, folder):
    import transformers
    print(f"transformers {transformers.__version__}")
    samples = TEXTS + oracle.fuzz_strings(0, 300) + [t[:2000] for t in oracle.documents(data / oracle.CORPORA["c4_validation_1k"])[:50]]
    sources = {"bytes": "bytes", "llama3": data / "tokenizers/llama3", "gpt2": data / "tokenizers/gpt2",
               "llama2.c": data / "checkpoints/aidreams260K_tokenizer.bin", "trained": folder / "trained"}
    run(program, "train", "--vocab", 2000, "--out", sources["trained"], data / oracle.CORPORA["wikipedia_valid"])
    for name, source in sources.items():
        target = folder / name
        if name != "trained":
            run(program, "convert", "--tokenizer", source, "--out", target)
        loaded = transformers.AutoTokenizer.from_pretrained(str(target))
        # One line a text: those with line breaks go in JSON-escaped form, which is as good a text as any.
        lines = [json.dumps(s, ensure_ascii=False)[1:-1].replace("\u2028", "") if "\n" in s or "\r" in s else s for s in samples]
        out = run(program, "encode", "--lines", "--tokenizer", target, stdin="\n".join(lines).encode() + b"\n")
        got = [json.loads(line) for line in out.splitlines()]
        want = [loaded(s)["input_ids"] for s in lines]
        wrong = [i for i, (a, b) in enumerate(zip(got, want)) if a != b]
        report(f"transformers loads what we write for {name}", len(got) == len(want) and not wrong,
               f"{len(want)} texts" + (f", first {lines[wrong[0]]!r}" if wrong else ""))
        config = transformers.GenerationConfig.from_pretrained(str(target))
        info = json.loads(run(program, "info", "--json", target))
        eos = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        report(f"generation_config.json and special tokens of {name}", eos == info["stops"] and loaded.bos_token_id == info["bos"])


def check_training(program, data, folder, corpus, vocab):
    path = data / "text" / f"{corpus}.jsonl.zst"
    out = folder / f"{corpus}_{vocab}"
    run(program, "train", "--vocab", vocab, "--out", out, path)
    model = json.loads((out / "tokenizer.json").read_text())
    special = [t["content"] for t in model["added_tokens"]]
    want = json.loads(train(oracle.documents(path), vocab, special).to_str())["model"]
    report(f"training {vocab} on {corpus}", model["model"]["merges"] == want["merges"] and model["model"]["vocab"] == want["vocab"],
           f"{len(want['merges'])} merges")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/bhyt")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--train-large", action="store_true")
    parser.add_argument("--only", choices=["ids", "transformers", "training"])
    args = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.only in (None, "transformers"):
            check_transformers(args.program, args.data, folder)
        if args.only in (None, "training"):
            check_training(args.program, args.data, folder, "wikipedia_valid", 4096)
            if args.train_large:
                check_training(args.program, args.data, folder, "wikipedia_a", 16384)
        if args.only in (None, "ids"):
            check_ids(args.program, args.data)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
