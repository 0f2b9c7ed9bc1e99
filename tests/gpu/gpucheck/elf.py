"""File offsets of the functions in a shared library: the part of ELF that a uprobe needs."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_LOADED = 1
_DYNAMIC_SYMBOLS = 11
_FUNCTION = 2


def function_offsets(library: Path) -> dict[str, int]:
    """Returns the file offset of every function in the dynamic symbol table, by name. Raises ValueError if there is no such table."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
        return dict(_functions(image))


def _functions(image: mmap.mmap) -> Iterator[tuple[str, int]]:
    header = _HEADER.unpack_from(image)
    if header[0][:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit little-endian ELF file")
    segments = list(_rows(image, _SEGMENT, header[5], header[9], header[10]))
    sections = list(_rows(image, _SECTION, header[6], header[11], header[12]))
    table = next((section for section in sections if section[1] == _DYNAMIC_SYMBOLS), None)
    if table is None:
        raise ValueError("no dynamic symbol table")
    names = sections[table[6]][4]
    for name, info, _, section, address, _ in _rows(image, _SYMBOL, table[4], _SYMBOL.size, table[5] // _SYMBOL.size):
        if info & 0xF == _FUNCTION and section != 0:
            start = names + name
            yield image[start : image.find(b"\0", start)].decode(), _file_offset(segments, address)


def _rows(image: mmap.mmap, shape: struct.Struct, start: int, size: int, count: int) -> Iterator[tuple]:
    return (shape.unpack_from(image, start + index * size) for index in range(count))


def _file_offset(segments: list[tuple], address: int) -> int:
    for kind, _, offset, start, _, size, _, _ in segments:
        if kind == _LOADED and start <= address < start + size:
            return address - start + offset
    raise ValueError(f"no segment holds the address {address:#x}")
