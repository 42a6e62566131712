#!/usr/bin/env python3
"""Writes tests/golden/tokenizer/golden.json: what `tokenizers`, `tiktoken` and llama2.c's rules give, for tests/text.

    python scripts/make_tokenizer_golden.py --data DIR        # DIR holds tokenizers/, text/ and checkpoints/

Long streams of ids are kept as their number and a CRC-32; short texts are kept whole. Where two oracles cover the same thing they
must agree, or nothing is written.
"""
import argparse
import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import tokenizer_oracles as oracle

FUZZ, SHORT_FUZZ, GROUP = 100_000, 20_000, 1_000

TEXTS = ["", " ", "Hello, world!", "I'm sure they'LL say 'tis 1234567 o'clock", "  two  spaces\n\n\nthree lines\r\n\t", "naïve café — “quotes”",
         "<|begin_of_text|>hi<|eot_id|>", "日本語 한국어 العربية 🇩🇪👨‍👩‍👧‍👦", "x'ſ y'ſtop", "a<|endoftext|>b", "hello world hello", "  <|im_start|> user <|im_end|>  z"]


def of_texts(tokenizer, texts):
    return [{"text": t, "ids": a, "plain": b}
            for t, a, b in zip(texts, oracle.encode(tokenizer, texts, True), oracle.encode(tokenizer, texts, False))]


def of_fuzz(tokenizer, count, check=None):
    """A checksum for each thousand strings, with special tokens and without."""
    sums = {"special": [], "plain": []}
    for first in range(0, count, GROUP):
        texts = oracle.fuzz_strings(first, first + GROUP)
        special, plain = (oracle.encode(tokenizer, texts, s) for s in (True, False))
        if check:
            assert special == [[128000] + check.encode(t, allowed_special="all") for t in texts], first
            assert plain == [check.encode(t, disallowed_special=()) for t in texts], first
        sums["special"].append(oracle.checksum(special))
        sums["plain"].append(oracle.checksum(plain))
    return sums


def of_corpora(tokenizer, data, check=None):
    out = {}
    for name, path in oracle.CORPORA.items():
        texts = oracle.documents(data / path)
        ids = oracle.encode(tokenizer, texts, False)
        if check:
            assert ids == [check.encode(t, disallowed_special=()) for t in texts], name
        out[name] = {"texts": len(texts), "ids": sum(map(len, ids)), "crc": oracle.checksum(ids)}
    return out


def train(texts, vocab, special):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(oracle.LLAMA3), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, show_progress=False,
                                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def training(data):
    """Tokenizers that `tokenizers` trains: the merges of small texts whole, those of wikipedia_valid as a checksum of their ids."""
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    small = {"repeats": ["aaaa aaaaa aaaaaaa abababab abab bababa", "ab ab ba aab baa aaaa"],
             "ties": ["low lower lowest new newer newest wide wider widest", "abc bcd cde abc bcd cde xyz xyz"],
             "rebuilt": ["abcab bcabc cabca abc bca cab abcabc bcabca " * 3, "xabc xab abcx bcx cabx xxabcxx ab bc ca"]}
    out = {"small": []}
    for name, texts in small.items():
        model = json.loads(train(texts, 400, special).to_str())["model"]
        out["small"].append({"name": name, "texts": texts, "vocab": 400, "merges": model["merges"], "tokens": len(model["vocab"])})
    texts = oracle.documents(data / oracle.CORPORA["wikipedia_valid"])
    model = json.loads(train(texts, 4096, special).to_str())["model"]
    pairs = [[model["vocab"][a], model["vocab"][b]] for a, b in model["merges"]]
    out["wikipedia_valid"] = {"vocab": 4096, "merges": len(pairs), "crc": oracle.checksum(pairs), "last": model["merges"][-3:]}
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    data = parser.parse_args().data

    llama3, tiktoken, gpt2 = oracle.llama3(data), oracle.llama3_tiktoken(data), oracle.gpt2(data)
    golden = {"fuzz_group": GROUP, "tokenizers": {}}
    golden["tokenizers"]["llama3"] = {"texts": of_texts(llama3, TEXTS), "corpora": of_corpora(llama3, data, tiktoken),
                                      "fuzz": of_fuzz(llama3, FUZZ, tiktoken)}
    golden["tokenizers"]["gpt2"] = {"texts": of_texts(gpt2, TEXTS), "corpora": of_corpora(gpt2, data), "fuzz": of_fuzz(gpt2, FUZZ)}
    for name, tokenizer in oracle.gpt2_variants(data).items():
        golden["tokenizers"][name] = {"texts": of_texts(tokenizer, TEXTS), "fuzz": of_fuzz(tokenizer, SHORT_FUZZ)}

    pieces = oracle.llama2c_pieces(data / "checkpoints/aidreams260K_tokenizer.bin")
    valid = oracle.documents(data / oracle.CORPORA["wikipedia_valid"])
    texts = ["", " ", "Echoes of vectors unfold", "  naïve σ°\n", "日本"] + [t[:200] for t in valid[:40]]
    golden["llama2c"] = [{"text": t, "ids": oracle.llama2c_encode(pieces, t)} for t in texts]
    golden["nfc"] = [[t, normalizers.NFC().normalize_str(t)] for t in oracle.fuzz_strings(0, 60)]
    golden["train"] = training(data)
    path = oracle.GOLDEN / "golden.json"
    path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
