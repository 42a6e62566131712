"""The independent tokenizers that ours is compared with, the texts to compare on, and how a stream of ids is summed up.

Used by make_tokenizer_golden.py, check_tokenizer.py and bench/tokenizer_bench.py. Tried with tokenizers 0.23.3, tiktoken 0.14.0
and transformers 5.22.2. The generator of strings is written a second time in tests/text/fuzz_strings.h: the two must stay equal.
"""
import base64
import gzip
import json
import struct
import subprocess
import zlib
from pathlib import Path

import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "tokenizer"


# ---- tokenizers ------------------------------------------------------------------------------------------------------------------


def byte_alphabet():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def llama3_ranks(data):
    lines = (data / "tokenizers/llama3/tokenizer.model").read_text().splitlines()
    return {base64.b64decode(token): int(rank) for token, rank in map(str.split, lines)}


def llama3_special():
    names = {0: "<|begin_of_text|>", 1: "<|end_of_text|>", 4: "<|finetune_right_pad_id|>", 6: "<|start_header_id|>",
             7: "<|end_header_id|>", 8: "<|eom_id|>", 9: "<|eot_id|>", 10: "<|python_tag|>"}
    reserved = iter(range(256))
    return [names.get(i) or f"<|reserved_special_token_{next(reserved)}|>" for i in range(256)]


def llama3_tiktoken(data):
    special = {name: 128000 + i for i, name in enumerate(llama3_special())}
    return tiktoken.Encoding("llama3", pat_str=LLAMA3, mergeable_ranks=llama3_ranks(data), special_tokens=special)


def llama3(data, pattern=LLAMA3):
    """Llama-3 as transformers converts it: every way to split a token, ordered by the token's rank."""
    ranks = llama3_ranks(data)
    alphabet = byte_alphabet()
    spell = {token: "".join(alphabet[b] for b in token) for token in ranks}
    merges = []
    for token in sorted(ranks, key=ranks.get):
        cuts = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += [(spell[a], spell[b]) for a, b in sorted(cuts, key=lambda c: (ranks[c[0]], ranks[c[1]]))]
    t = Tokenizer(models.BPE(vocab={spell[k]: v for k, v in ranks.items()}, merges=merges, ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in llama3_special()])
    t.post_processor = processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 128000)])
    return t


def gpt2(data):
    folder = data / "tokenizers/gpt2"
    t = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    return t


def gpt2_variants(data):
    """GPT-2's vocabulary behind the other steps a tokenizer.json may hold. tests/text/golden_test.cpp builds the same."""
    qwen2 = gpt2(data)
    qwen2.normalizer = normalizers.NFC()
    qwen2.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    digits = gpt2(data)
    digits.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    prefix = gpt2(data)
    prefix.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    prefix.add_tokens([AddedToken("<|im_start|>", lstrip=True, special=True, normalized=False),
                       AddedToken("<|im_end|>", rstrip=True, special=True, normalized=False),
                       AddedToken("hello", normalized=True), AddedToken("hello world", normalized=True)])
    return {"gpt2_qwen2_nfc": qwen2, "gpt2_digits": digits, "gpt2_prefix_added": prefix}


def llama2c_pieces(path):
    raw, at, pieces = path.read_bytes(), 4, []
    while at < len(raw):
        score, size = struct.unpack_from("<fi", raw, at)
        pieces.append((raw[at + 8:at + 8 + size], score))
        at += 8 + size
    return pieces


def llama2c_encode(pieces, text):
    """llama2.c's encode() with a beginning-of-text token, read line by line from run.c."""
    ids = {piece: i for i, (piece, _) in enumerate(pieces)}
    tokens = [1]
    if text:
        tokens.append(ids[b" "])
    for char in text:
        raw = char.encode()
        tokens += [ids[raw]] if raw in ids else [b + 3 for b in raw]
    while True:
        best, where = -1e10, -1
        for i in range(len(tokens) - 1):
            merged = ids.get(pieces[tokens[i]][0] + pieces[tokens[i + 1]][0])
            if merged is not None and pieces[merged][1] > best:
                best, where = pieces[merged][1], i
        if where < 0:
            return tokens
        tokens[where:where + 2] = [ids[pieces[tokens[where]][0] + pieces[tokens[where + 1]][0]]]


def encode(tokenizer, texts, special):
    tokenizer.encode_special_tokens = not special
    return [e.ids for e in tokenizer.encode_batch(list(texts), add_special_tokens=special)]


# ---- texts -----------------------------------------------------------------------------------------------------------------------


def documents(path):
    """The texts of a JSONL file, or a text file as one."""
    if path.name.endswith(".zst"):
        raw = subprocess.run(["zstd", "-dc", str(path)], check=True, capture_output=True).stdout
    else:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if ".jsonl" not in path.name:
        return [raw.decode()]
    return [json.loads(line)["text"] for line in raw.split(b"\n") if line.strip()]


CORPORA = {"wikipedia_valid": "text/wikipedia_valid.jsonl.zst", "c4_validation_1k": "text/c4_validation_1k.jsonl.gz",
           "wikitext2": "text/wikitext2_raw_test.txt"}


class SplitMix:
    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        mask = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return (z ^ (z >> 31)) % n


def fuzz_string(index, pieces, blocks):
    """String number `index`: pieces of all kinds, some in long runs, and stray code points."""
    rng, out = SplitMix(index), []
    for _ in range(1 + rng.below(20)):
        kind = rng.below(16)
        if kind < 12:
            group = pieces[rng.below(len(pieces))]
            piece = group[rng.below(len(group))]
            out.append(piece * (1 + rng.below(40) if rng.below(10) == 0 else 1))
        elif kind < 15:
            first, last = blocks[rng.below(len(blocks))]
            for _ in range(1 + rng.below(4)):
                out.append(chr(first + rng.below(last - first + 1)))
        else:
            code = rng.below(0x110000 - 0x800)
            out.append(chr(code if code < 0xD800 else code + 0x800))
    return "".join(out)


def fuzz_strings(first, last):
    source = json.loads((GOLDEN / "fuzz_pieces.json").read_text())
    pieces, blocks = list(source["pieces"].values()), source["blocks"]
    return [fuzz_string(i, pieces, blocks) for i in range(first, last)]


# ---- sums ------------------------------------------------------------------------------------------------------------------------


def checksum(streams):
    """CRC-32 of every id as four little-endian bytes, with 0xFFFFFFFF after each text."""
    crc = 0
    for ids in streams:
        crc = zlib.crc32(struct.pack(f"<{len(ids) + 1}I", *ids, 0xFFFFFFFF), crc)
    return crc
