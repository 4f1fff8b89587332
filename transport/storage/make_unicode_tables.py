#!/usr/bin/env python3
"""Prints unicode_classes.inc or unicode_nfc.inc from Python's unicodedata.

    make_unicode_tables.py classes > unicode_classes.inc
    make_unicode_tables.py nfc     > unicode_nfc.inc
"""
import sys
import unicodedata as u

CODES = range(0x110000)


def ranges(f):
    """Maximal runs of code points with the same true value of f: (first, last, value)."""
    out = []
    for c in CODES:
        v = f(c)
        if v and out and out[-1][1] == c - 1 and out[-1][2] == v:
            out[-1][1] = c
        elif v:
            out.append([c, c, v])
    return out


def table(name, kind, rows):
    print(f"constexpr {kind} {name}[] = {{")
    line = "   "
    for row in rows:
        text = ", ".join(f"0x{x:X}" for x in row)
        text = f" {text}," if len(row) == 1 else f" {{{text}}},"
        if len(line) + len(text) > 100:
            print(line)
            line = "   "
        line += text
    print(line)
    print("};")


def category(c):
    return "L" if 0xD800 <= c <= 0xDFFF else u.category(chr(c))


def decomposition(c):
    d = "" if 0xD800 <= c <= 0xDFFF else u.decomposition(chr(c))
    return [] if not d or d[0] == "<" else [int(x, 16) for x in d.split()]


print(f"// Unicode {u.unidata_version}. Made by make_unicode_tables.py; do not edit.")
if sys.argv[1:] == ["classes"]:
    surrogate = lambda c: 0xD800 <= c <= 0xDFFF
    for name, first in (("kLetters", "L"), ("kNumbers", "N")):
        found = ranges(lambda c: not surrogate(c) and category(c)[0] == first)
        table(name, "Range", [r[:2] for r in found])
elif sys.argv[1:] == ["nfc"]:
    table("kCombiningClasses", "CombiningRange", ranges(lambda c: u.combining(chr(c))))
    singles, pairs, broken = [], [], []
    for c in CODES:
        parts = decomposition(c)
        if len(parts) == 1:
            singles.append((c, parts[0]))
        elif len(parts) == 2:
            pairs.append((c, parts[0], parts[1]))
            if u.normalize("NFC", "".join(map(chr, parts))) != chr(c):
                broken.append((c,))
    table("kSingles", "Single", singles)
    table("kPairs", "Pair", pairs)
    table("kNotComposed", "Code", broken)  # pairs that do not compose again
else:
    sys.exit(__doc__)
