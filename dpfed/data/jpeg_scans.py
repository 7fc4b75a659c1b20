"""Recognises JPEG files with too many scans, which are passes over the pixels.

A kilobyte of scans can keep a decoder busy for a minute.
"""

from __future__ import annotations

import re

MOST_SCANS = 50  # ordinary files contain a dozen at most

_SCAN, _END = 0xDA, 0xD9
_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd8\xff])", re.DOTALL)  # not: stuffed bytes, restarts, the start, fill bytes


def too_many_scans(content: bytes) -> bool:
    """Returns whether a JPEG file has more than `MOST_SCANS` scans. Data after its first picture are not counted.

    Args:
        content: Bytes of the file.
    """
    if content.count(bytes([0xFF, _SCAN])) <= MOST_SCANS:
        return False
    scans, place = 0, 0
    while marker := _MARKER.search(content, place):
        kind = marker[1][0]
        if kind == _END:
            return False
        scans += kind == _SCAN
        if scans > MOST_SCANS:
            return True
        place = marker.end() + int.from_bytes(content[marker.end() : marker.end() + 2], "big")
    return False
