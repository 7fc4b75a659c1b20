"""How many passes over its pixels a JPEG asks for: a kilobyte of them can keep a decoder busy for a minute."""

from __future__ import annotations

import re

MOST_SCANS = 50  # files that people have contain a dozen at most

_SCAN, _END = 0xDA, 0xD9
_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd8\xff])", re.DOTALL)  # not: stuffed bytes, restarts, the start, fill bytes


def too_many_scans(content: bytes) -> bool:
    """Whether a JPEG file has more than `MOST_SCANS` scans; what follows its first picture is not counted."""
    if content.count(bytes([0xFF, _SCAN])) <= MOST_SCANS:
        return False
    found, place = 0, 0
    while marker := _MARKER.search(content, place):
        kind = marker[1][0]
        if kind == _END:
            return False
        found += kind == _SCAN
        if found > MOST_SCANS:
            return True
        place = marker.end() + int.from_bytes(content[marker.end() : marker.end() + 2], "big")
    return False
