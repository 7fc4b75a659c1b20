"""What the network takes for a host: a DNS name (RFC 1123) or an IP address."""

from __future__ import annotations

import ipaddress
import re

_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_LONGEST = 253  # characters of a name


def is_host(text: str) -> bool:
    """Whether others can reach a machine under this: not where it ends in a number, which is an address gone wrong.

    Args:
        text: without scheme and port.
    """
    try:
        return not ipaddress.ip_address(text).is_unspecified and "%" not in text
    except ValueError:
        named = re.fullmatch(rf"({_LABEL}\.)*{_LABEL}", text)
        return bool(named) and len(text) <= _LONGEST and not text.rpartition(".")[2].isdigit()
