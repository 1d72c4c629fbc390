#!/usr/bin/env python3
"""Makes the unique symbols (STB_GNU_UNIQUE) of an ELF object plain global ones, in place: objcopy localizes only those.
Usage: plain_bindings.py OBJECT"""
import struct
import sys

SHT_SYMTAB, STB_GLOBAL, STB_GNU_UNIQUE = 2, 1, 10


def main():
    with open(sys.argv[1], "r+b") as file:
        data = bytearray(file.read())
        if data[:6] != b"\x7fELF\x02\x01":
            sys.exit(f"{sys.argv[1]}: no little-endian 64-bit ELF object")
        (start,) = struct.unpack_from("<Q", data, 0x28)
        entry_bytes, n_sections = struct.unpack_from("<HH", data, 0x3A)
        if n_sections == 0:  # more than the field holds: the count stands in the first section
            (n_sections,) = struct.unpack_from("<Q", data, start + 0x20)
        for i in range(n_sections):
            header = start + i * entry_bytes
            (kind,) = struct.unpack_from("<I", data, header + 4)
            if kind != SHT_SYMTAB:
                continue
            offset, size = struct.unpack_from("<QQ", data, header + 0x18)
            (symbol_bytes,) = struct.unpack_from("<Q", data, header + 0x38)
            for at in range(offset + 4, offset + size, symbol_bytes):  # st_info
                if data[at] >> 4 == STB_GNU_UNIQUE:
                    data[at] = STB_GLOBAL << 4 | data[at] & 15
        file.seek(0)
        file.write(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
