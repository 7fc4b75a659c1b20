"""Flower's SuperNode, less idle and more patient: `dpfed site supernode` takes the options of `flower-supernode`.

A SuperNode looks for messages every 3 seconds while it has none, and for its app's reply every half a second. With shorter
pauses an exchange takes about 3 seconds less, and a step with secure sums, which needs two of them, 6. It also gives up for
good where a network fails while it connects over TLS; this one tries again. A federation with `flower-supernode` itself works
as well, and is slower; see that it is started again.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path

from dpfed.federation.flower.internals import outlast_cut_handshakes, run_supernode, shorten_fetching, shorten_idling
from dpfed.federation.provisioning.findings import State
from dpfed.federation.provisioning.network import of_connection

_UNKNOWN = (
    "the coordinator has not registered this SuperNode's key yet, or not again since its SuperLink was restarted: send it "
    "reply.json, and start the SuperNode again. A service manager does that by itself"
)


def main() -> None:
    """The command line of `flower-supernode`."""
    refused = threading.Event()
    shorten_fetching()
    shorten_idling()
    outlast_cut_handshakes(refused.set)
    try:
        run_supernode()
    except SystemExit as end:
        if end.code == 1 or refused.is_set():
            print(f"error: the SuperNode was not let in: {_reason(sys.argv[1:])}.", file=sys.stderr)
            sys.exit(1)
        raise


def _reason(words: list[str]) -> str:
    """Why the SuperLink refuses this SuperNode: what is wrong on the way to it, the clock included, or an unknown key."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("--superlink", "--root-certificates"):
        parser.add_argument(option)
    given, _ = parser.parse_known_args(words)
    if given.superlink and given.root_certificates:
        for found in of_connection(given.superlink, Path(given.root_certificates), os.environ):
            if found.state is State.BAD:
                return f"{found.about}: {found.said}; {found.advice}"
    return _UNKNOWN
