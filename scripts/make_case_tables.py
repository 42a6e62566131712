#!/usr/bin/env python3
"""Writes src/text/letter_case_tables.cpp: Python's lower case and title case of every character (str.lower, str.title).

    python scripts/make_case_tables.py > src/text/letter_case_tables.cpp
"""
import unicodedata

CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def runs(change):
    """[first, last, step, what is added]: characters one or two apart that move by the same distance."""
    out = []
    for c in CODES:
        to = change(chr(c))
        if len(to) != 1 or ord(to) == c:
            continue
        by = ord(to) - c
        if out and out[-1][3] == by and c - out[-1][1] in ((1, 2) if out[-1][0] == out[-1][1] else (out[-1][2],)):
            out[-1][1:3] = c, c - out[-1][1]
        else:
            out.append([c, c, 1, by])
    return out


def table(name, kind, rows, show):
    print(f"const {kind} {name}[] = {{")
    for i in range(0, len(rows), 5):
        print("    " + " ".join("{" + show(row) + "}," for row in rows[i:i + 5]))
    print("};")
    print(f"const std::size_t {name}Count = {len(rows)};\n")


def main():
    print(f"// Written by scripts/make_case_tables.py from Python's Unicode {unicodedata.unidata_version}; do not edit.")
    print('// clang-format off\n#include "text/letter_case_tables.h"\n\nnamespace bhyt::unicode {\n')
    for name, change in ("kLower", str.lower), ("kTitle", str.title):
        table(name, "CaseRun", runs(change), lambda r: f"0x{r[0]:X}, 0x{r[1]:X}, {r[2]}, {r[3]}")
    several = [c for c in CODES if len(chr(c).title()) > 1]
    table("kLongTitle", "LongCase", several, lambda c: f"0x{c:X}, {{" + ", ".join(f"0x{ord(x):X}" for x in chr(c).title()) + "}")
    print("}  // namespace bhyt::unicode")


if __name__ == "__main__":
    main()
