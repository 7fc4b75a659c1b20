"""Flower's SuperNode, less idle and more patient: `dpfed site supernode` takes the options of `flower-supernode`.

A SuperNode looks for messages every 3 seconds while it has none, and for its app's reply every half a second. With shorter
pauses an exchange takes about 3 seconds less, and a step with secure sums, which needs two of them, 6. It also gives up for
good where a network fails while it connects over TLS; this one tries again. A federation with `flower-supernode` itself works
as well, and is slower; see that it is started again.
"""

from __future__ import annotations

import sys

from dpfed.federation.flower.internals import outlast_cut_handshakes, run_supernode, shorten_fetching, shorten_idling

_NOT_LET_IN = (
    "error: the SuperNode was not let in. If `dpfed site doctor` reaches the coordinator, the coordinator has not registered "
    "this SuperNode's key yet: send it reply.json, and start the SuperNode again. A service manager does that by itself."
)


def main() -> None:
    """The command line of `flower-supernode`."""
    shorten_fetching()
    shorten_idling()
    outlast_cut_handshakes()
    try:
        run_supernode()
    except SystemExit as end:
        if end.code == 1:
            print(_NOT_LET_IN, file=sys.stderr)
        raise
