#!/usr/bin/env python3
"""Takes out of utf8proc's tables what normalisation to NFC and the borders of graphemes do not ask for: 332 KB become
about 140. Cases, widths, categories and compatibility are gone then; lib/model/tokenizer_normalize.cc is the only user
and asks for none of them (tests/package/built_packages_test.py, unicode).

Usage: utf8proc_tables.py IN OUT        both utf8proc_data.c"""
import re
import sys

# Of a row of utf8proc_properties, in order. The kept ones are those that canonical decomposition, composition and
# grapheme_break read.
FIELDS = ["category", "combining_class", "bidi_class", "decomp_type", "decomp_seqindex", "casefold_seqindex",
          "uppercase_seqindex", "lowercase_seqindex", "titlecase_seqindex", "comb_index", "bidi_mirrored",
          "comp_exclusion", "ignorable", "control_boundary", "charwidth", "pad", "boundclass"]
KEPT = {"combining_class", "decomp_seqindex", "comb_index", "comp_exclusion", "boundclass"}
NONE = "UINT16_MAX"
BLOCK = 256  # code points with one entry of utf8proc_stage1table


def table(text, name):
    body = re.search(rf"{name}\[\] = {{(.*?)}};", text, re.S).group(1)
    return [int(number) for number in body.replace(",", " ").split()]


def rows(text):
    body = re.search(r"utf8proc_properties\[\] = {\n(.*?)\n};", text, re.S).group(1)
    for line in body.split("\n"):
        values = [value.strip() for value in line.strip().rstrip(",").strip("{}").split(",")]
        if len(values) != len(FIELDS):
            sys.exit(f"utf8proc_tables.py: {len(values)} properties, not {len(FIELDS)}: {line}")
        yield dict(zip(FIELDS, values))


def sequence(sequences, index):
    """The units of one decomposition: index holds its place and, in the upper two bits, its length less one."""
    at, length = index & 0x3FFF, index >> 14
    start = at
    if length >= 3:  # too long for two bits: it stands in front
        length = sequences[at]
        at += 1
    for _ in range(length + 1):
        at += 2 if sequences[at] & 0xF800 == 0xD800 else 1
    return sequences[start:at]


def reduced_row(row, sequences, moved, out):
    """The row without what nobody asks for; its decomposition, if it is a canonical one, goes to out."""
    plain = {name: "0" if name in ("category", "bidi_class", "decomp_type", "charwidth", "pad") else
             NONE if name.endswith("index") else "false" for name in FIELDS}
    plain.update({name: row[name] for name in KEPT})
    if row["decomp_type"] != "0":
        plain["decomp_seqindex"] = NONE
    if plain["decomp_seqindex"] != NONE:
        index = int(plain["decomp_seqindex"])
        units = tuple(sequence(sequences, index))
        if units not in moved:
            moved[units] = len(out)
            out.extend(units)
        plain["decomp_seqindex"] = str(moved[units] | index & 0xC000)
    return "  {" + ", ".join(plain[name] for name in FIELDS) + "},\n"


def numbers(name, values):
    lines = "".join("  " + ", ".join(map(str, values[i:i + 16])) + ",\n" for i in range(0, len(values), 16))
    return f"static const utf8proc_uint16_t {name}[] = {{\n{lines}}};\n\n"


def reduce(text):
    sequences, moved, kept_sequences = table(text, "utf8proc_sequences"), {}, []
    stage1, stage2 = table(text, "utf8proc_stage1table"), table(text, "utf8proc_stage2table")
    seen, place = {}, []  # row -> its new place; old place -> new place
    for row in rows(text):
        line = reduced_row(row, sequences, moved, kept_sequences)
        place.append(seen.setdefault(line, len(seen)))
    blocks, new_stage1 = {}, []
    for start in stage1:
        block = tuple(place[i] for i in stage2[start:start + BLOCK])
        new_stage1.append(BLOCK * blocks.setdefault(block, len(blocks)))
    return ("/* utf8proc's tables without what normalisation to NFC and the borders of graphemes do not ask for:\n"
            " * written by packaging/utf8proc_tables.py. */\n"
            + numbers("utf8proc_sequences", kept_sequences) + numbers("utf8proc_stage1table", new_stage1)
            + numbers("utf8proc_stage2table", [i for block in blocks for i in block])
            + "static const utf8proc_property_t utf8proc_properties[] = {\n" + "".join(seen) + "};\n\n"
            + numbers("utf8proc_combinations", table(text, "utf8proc_combinations")))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        text = reduce(file.read())
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
