#!/usr/bin/env python3
"""Writes fuzz/corpus: small valid files of every format, from which the fuzzers start. What they found stays beside them, as found_*.

usage: make_fuzz_corpus.py --bhyt build/bhyt [--out fuzz/corpus]
"""
import argparse
import base64
import gzip
import json
import pathlib
import shutil
import struct
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).parents[1]


def safetensors(tensors, metadata=None):
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def llama2c_model():
    dim, hidden, layers, heads, kv, vocab, seq = 4, 3, 1, 2, 1, 3, 2
    floats = vocab * dim + layers * (2 * dim + 2 * dim * dim + 2 * kv * dim // heads * dim + 3 * hidden * dim) + dim + seq * (dim // heads)
    return struct.pack("<7i", dim, hidden, layers, heads, kv, vocab, seq) + struct.pack(f"<{floats}f", *(i / 8 for i in range(floats)))


def llama2c_tokenizer():
    pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n"] + [b"<0x%02X>" % i for i in range(256)] + [b" ", b"a", b"e", b"h", b"l", b"o", b"he", b"ll"]
    out = struct.pack("<i", max(map(len, pieces)))
    for i, piece in enumerate(pieces):
        out += struct.pack("<fi", -float(i) if i > 258 else 0.0, len(piece)) + piece
    return out


def llmc_shard(magic, version, ids, code):
    header = [magic, version, len(ids)] + [0] * 253
    return struct.pack("<256i", *header) + struct.pack(f"<{len(ids)}{code}", *ids)


def made_by_program(bhyt, out):
    """A token file as the program itself writes it."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        text = folder / "a.txt"
        text.write_text("the cat sat on the mat, the cat's hat 12 345\n" * 8)
        run = lambda *words: subprocess.run([bhyt, *map(str, words)], check=True, capture_output=True)
        run("data", "pack", "--out", folder / "a.tok", "--tokenizer", "bytes", "--lines", text)
        shutil.copy(folder / "a.tok", out / "token_file" / "bytes")


def minimal_tokenizer():
    vocab = {chr(c): i for i, c in enumerate([33, 34, 97, 98, 0x120])} | {"ab": 5}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": 6, "content": "<|end_of_text|>", "single_word": False, "lstrip": False, "rstrip": False,
                              "normalized": False, "special": True}],
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"},
                 "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
            "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": True, "vocab": vocab, "merges": ["a b"]}}


def llama3_tokenizer():
    j = minimal_tokenizer()
    j["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}]}
    j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    special = {"id": "<|end_of_text|>", "ids": [6], "tokens": ["<|end_of_text|>"]}
    template = {"type": "TemplateProcessing", "pair": [], "special_tokens": {"<|end_of_text|>": special},
                "single": [{"SpecialToken": {"id": "<|end_of_text|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]}
    j["post_processor"] = {"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]}
    j["added_tokens"].append({"id": 9, "content": "world", "special": False, "normalized": True, "lstrip": True, "rstrip": True})
    j["model"]["merges"] = [["a", "b"]]
    return j


def digits_tokenizer():
    j = minimal_tokenizer()
    j["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel"}]}
    j["model"] |= {"unk_token": "a", "fuse_unk": True}
    return j


def metaspace_tokenizer():
    j = minimal_tokenizer()
    vocab = {"<unk>": 0} | {f"<0x{b:02X}>": 1 + b for b in range(256)} | {"\u2581": 257, "l": 258, "o": 259, "lo": 260, "\u2581lo": 261}
    j["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
    j["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    j["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
    j["added_tokens"] = []
    j["model"] |= {"vocab": vocab, "merges": ["l o", "\u2581 lo"], "unk_token": "<unk>", "byte_fallback": True}
    return j


def byte_alphabet():
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in own]
    return [chr(b) for b in own] + [chr(0x100 + i) for i in range(len(others))]


def jsonl_lines():
    yield "plain", '{"id": 7, "text": "the cat", "meta": {"text": [1, -2.5e3, null, true]}}'
    yield "escapes", r'{"text": "a\n\"\\\/\b\f\r\t\u00e9\ud83d\ude00", "te\u0078t": "last one counts"}'
    yield "utf8", '{"text": "café € 😀"}'
    yield "no_text", '{"body": "x"}'


def compressed(text):
    yield "text", text
    yield "gzip", gzip.compress(text, mtime=0)
    yield "two_members.gz", gzip.compress(text[:9], mtime=0) + gzip.compress(text[9:], mtime=0)
    zstd = lambda part, *words: subprocess.run(["zstd", "-q", "-c", *words], input=part, check=True, capture_output=True).stdout
    yield "zstd", zstd(text)
    yield "no_check.zst", zstd(text, "--no-check")
    yield "two_frames.zst", zstd(text[:9], "--no-check") + zstd(text[9:])


def trainer_states():
    progress = {"step": 20, "updates": 19, "skipped_in_row": 0, "loss_sum": 12.5, "loss_count": 4, "best_metric": 3.25, "best_step": 10}
    own = {"version": 1, "progress": progress, "mathematics": {"run.dtype": "bf16", "train.lr": 0.0005, "train.betas": [0.9, 0.95]}}
    state = {"best_global_step": 10, "best_metric": 3.25, "epoch": 0.5, "global_step": 20, "log_history": [{"step": 10, "loss": 3.5}], "bhyt": own}
    yield "plain.json", json.dumps(state)
    yield "none_yet.json", json.dumps(state | {"bhyt": own | {"progress": progress | {"best_metric": None, "best_step": 0}, "interrupt": True}})


def metrics():
    layers = {"norm": [1.0, 2.0], "abs": [0.5, 0.75], "variance": [1, 1], "lambda_attn": [1.0], "lambda_mlp": [0.5]}
    train = [{"step": s, "tokens": s * 64, "loss": 9 - s / 8, "grad_norm": 0.5, "lr": 1e-3, "tok_s": 900, "step_ms": 71.5, "time": 1700000000 + s}
             for s in (10, 20, 30)]
    lines = [train[0], {"step": 10, "valid_loss": 8.0, "valid_tokens": 64}, {"step": 10, "layers": layers},
             {"step": 15, "event": "skipped_step", "reason": "loss"}, train[1], train[2]]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    yield "plain.jsonl", text
    yield "torn.jsonl", text[:-20]
    yield "resumed.jsonl", text + json.dumps(train[1]) + "\n" + '{"step": 21, "loss": NaN, "lr": -Infinity}\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bhyt", required=True)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "fuzz/corpus")
    args = parser.parse_args()
    for old in args.out.glob("*/*"):
        if not old.name.startswith("found_"):
            old.unlink()

    def put(target, name, content):
        folder = args.out / target
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    put("safetensors", "empty", safetensors({}))
    put("safetensors", "two", safetensors({"a": ("F32", [2, 2], bytes(16)), "b.c": ("BF16", [], b"\x80\x3f")}, {"format": "pt"}))
    put("safetensors", "types", safetensors({d: (d, [2], bytes(2 * n)) for d, n in
                                             (("F64", 8), ("I64", 8), ("F32", 4), ("I32", 4), ("F16", 2), ("BF16", 2), ("U8", 1), ("BOOL", 1))}))
    put("safetensors", "zero", safetensors({"z": ("F32", [3, 0], b"")}))
    for case in sorted((ROOT / "tests/golden/models").glob("*/config.json")):
        put("model_config", case.parent.name + ".json", json.dumps(json.loads(case.read_text())))
    put("weight_index", "one", json.dumps({"metadata": {"total_size": 8}, "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "x"}}))
    put("llama2c_model", "tiny", llama2c_model())
    put("llama2c_tokenizer", "tiny", llama2c_tokenizer())
    put("tiktoken", "bytes", "".join(f"{base64.b64encode(bytes([b])).decode()} {b}\n" for b in range(256)) +
        "".join(f"{base64.b64encode(w).decode()} {256 + i}\n" for i, w in enumerate((b"he", b"ll", b" w", b"hell"))))
    for name, made in (("minimal", minimal_tokenizer), ("llama3", llama3_tokenizer), ("digits", digits_tokenizer), ("metaspace", metaspace_tokenizer)):
        put("tokenizer_json", name + ".json", json.dumps(made(), ensure_ascii=False, separators=(",", ":")))
    alphabet = byte_alphabet()
    put("vocab_merges", "gpt2", json.dumps({t: i for i, t in enumerate(alphabet + ["he", "ll"])}) + "\0#version: 0.2\nh e\nl l\n")
    put("token_file", "gpt2.bin", llmc_shard(20240520, 1, [50256, 1, 2, 3, 50256, 7], "H"))
    put("token_file", "llama3.bin", llmc_shard(20240801, 7, [128000, 1, 2, 3], "I"))
    for name in ("demo-bhyt", "llama-1b-lns"):
        put("run_config", name + ".yaml", (ROOT / "configs" / f"{name}.yaml").read_bytes())
    put("run_config", "mixture.yaml", "data: {train: [{path: a.tok, weight: 0.7}, {path: 'b*.tok', weight: 3e-1}], seq_len: 64, attend: document}\n"
        "train: {tokens: 1e6, betas: [0.9, 0.99], micro_batch: auto}\nrun: {dtype: fp32, seed: 7, threads: auto}\n")
    for target, made in (("jsonl_text", jsonl_lines()), ("compressed_input", compressed(b"the cat sat\non the mat\n" * 6)),
                         ("trainer_state", trainer_states()), ("metrics_lines", metrics())):
        for name, content in made:
            put(target, name, content)
    made_by_program(args.bhyt, args.out)


if __name__ == "__main__":
    main()
