#!/usr/bin/env python3
"""Writes src/text/unicode_tables.cpp: what \\p{L}, \\p{N} and \\s match, and what NFC does, in the libraries whose ids we reproduce.

The tables are asked from `tokenizers` (0.23) and `tiktoken` (0.14) themselves, because Unicode versions differ: both must agree on
the classes. NFC is that of `tokenizers` (an older Unicode than Python's), so its combining classes are probed one by one.

    python scripts/make_unicode_tables.py > src/text/unicode_tables.cpp
"""
import random
import sys
import unicodedata

import tiktoken
from tokenizers import Regex
from tokenizers.normalizers import NFC, NFD
from tokenizers.pre_tokenizers import Split

CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
EVERYTHING = "".join(map(chr, CODES))
HANGUL = range(0xAC00, 0xAC00 + 11172)  # composed by rule, not by table
nfc, nfd = NFC().normalize_str, NFD().normalize_str


def matched(pattern):
    """The code points a one-character pattern matches, by both libraries."""
    by_hf = {ord(p) for p, _ in Split(Regex(pattern), behavior="removed", invert=True).pre_tokenize_str(EVERYTHING)}
    encoding = tiktoken.Encoding("probe", pat_str=pattern, mergeable_ranks={bytes([i]): i for i in range(256)}, special_tokens={})
    by_tiktoken = set(map(ord, bytes(encoding.encode_ordinary(EVERYTHING)).decode()))
    assert by_hf == by_tiktoken, pattern
    return sorted(by_hf)


def ranges(codes):
    out = []
    for c in codes:
        if out and out[-1][1] + 1 == c:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def combining_classes():
    """(first, last, class) of what `tokenizers` reorders; a class it does not know shows as no reordering."""
    classes = {}
    for c in CODES:
        k = unicodedata.combining(chr(c))
        probes = ["b" + p + chr(c) for p in "\u0334\u0301\u0345"] + ["b" + chr(c) + p for p in "\u0334\u0301\u0345"]
        if k and all(nfd(t) == unicodedata.normalize("NFD", t) for t in probes):
            classes[c] = k
    out = []
    for c, k in sorted(classes.items()):
        if out and out[-1][1] + 1 == c and out[-1][2] == k:
            out[-1][1] = c
        else:
            out.append([c, c, k])
    return out


def decompositions():
    """One-step canonical decompositions, split into those that compose again and those that do not."""
    pairs, one_way = [], []
    for c in CODES:
        if c in HANGUL or nfd(chr(c)) == chr(c):
            continue
        parts = [int(x, 16) for x in unicodedata.decomposition(chr(c)).split()]
        assert 1 <= len(parts) <= 2, hex(c)
        first, second = parts[0], parts[1] if len(parts) == 2 else 0
        composes = len(parts) == 2 and nfc(chr(first) + chr(second)) == chr(c)
        (pairs if composes else one_way).append((c, first, second))
    return pairs, one_way


def normalize(text, classes, decomposition, composition):
    """NFC by the tables alone, as src/text/normalize.cpp does it; here to prove the tables."""
    def expand(c):
        if c in HANGUL:
            s = c - 0xAC00
            tail = [0x11A7 + s % 28] if s % 28 else []
            return [0x1100 + s // 588, 0x1161 + s % 588 // 28] + tail
        if c not in decomposition:
            return [c]
        first, second = decomposition[c]
        return expand(first) + ([second] if second else [])

    def compose(a, b):
        if 0x1100 <= a < 0x1113 and 0x1161 <= b < 0x1176:
            return 0xAC00 + ((a - 0x1100) * 21 + b - 0x1161) * 28
        if a in HANGUL and (a - 0xAC00) % 28 == 0 and 0x11A8 <= b < 0x11C3:
            return a + b - 0x11A7
        return composition.get((a, b))

    codes = [d for ch in text for d in expand(ord(ch))]
    i = 0
    while i < len(codes):  # canonical order: stable sort of each run of non-starters
        j = i
        while j < len(codes) and classes.get(codes[j], 0):
            j += 1
        codes[i:j] = sorted(codes[i:j], key=lambda c: classes[c])
        i = j + 1
    out, starter, last = [], None, 0
    for c in codes:
        k = classes.get(c, 0)
        blocked = starter is not None and len(out) > starter + 1 and last >= k
        whole = compose(out[starter], c) if starter is not None and not blocked else None
        if whole is not None:
            out[starter] = whole
            continue
        if k == 0:
            starter = len(out)
        out.append(c)
        last = k
    return "".join(map(chr, out))


def prove(class_ranges, pairs, one_way):
    classes = {c: k for a, b, k in class_ranges for c in range(a, b + 1)}
    decomposition = {c: (a, b) for c, a, b in pairs + one_way}
    composition = {(a, b): c for c, a, b in pairs}
    for c in CODES:
        assert normalize(chr(c), classes, decomposition, composition) == nfc(chr(c)), hex(c)
    rng = random.Random(0)
    pool = sorted(set(classes) | set(decomposition) | set(range(0x1100, 0x1200)) | set(range(0xAC00, 0xAE00)) | set(range(0x41, 0x7B)))
    pool += sorted(classes) * 3
    for _ in range(200_000):
        text = "".join(chr(rng.choice(pool)) for _ in range(rng.randint(1, 8)))
        assert normalize(text, classes, decomposition, composition) == nfc(text), ascii(text)


def table(name, kind, rows, per_line):
    print(f"const {kind} {name}[] = {{")
    for i in range(0, len(rows), per_line):
        print("    " + " ".join("{" + ", ".join(f"0x{v:X}" for v in row) + "}," for row in rows[i:i + per_line]))
    print("};")
    print(f"const std::size_t {name}Count = {len(rows)};\n")


def main():
    letters, numbers, spaces = matched(r"\p{L}"), matched(r"\p{N}"), matched(r"\s")
    class_ranges = combining_classes()
    pairs, one_way = decompositions()
    prove(class_ranges, pairs, one_way)
    print("// Written by scripts/make_unicode_tables.py from tokenizers and tiktoken; do not edit.")
    print(f"// {len(letters)} letters, {len(numbers)} numbers, {len(spaces)} spaces.")
    print("// clang-format off")
    print('#include "text/unicode_tables.h"\n\nnamespace bhyt::unicode {\n')
    table("kLetters", "Range", ranges(letters), 6)
    table("kNumbers", "Range", ranges(numbers), 6)
    table("kSpaces", "Range", ranges(spaces), 6)
    table("kCombiningClasses", "ClassRange", class_ranges, 5)
    table("kCompositions", "Decomposition", pairs, 5)
    table("kOneWay", "Decomposition", one_way, 5)
    print("}  // namespace bhyt::unicode")
    print(f"{len(letters)} letters, {len(numbers)} numbers, {len(spaces)} spaces, {len(class_ranges)} combining ranges, "
          f"{len(pairs)} + {len(one_way)} decompositions", file=sys.stderr)


if __name__ == "__main__":
    main()
