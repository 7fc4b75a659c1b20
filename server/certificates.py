"""Certificates for a SuperLink, and keys for SuperNodes.

    python -m server.certificates DIR --host superlink.example.org --host 10.1.2.3    a server's certificate
    python -m server.certificates DIR --node north                                    a SuperNode's key pair

The first makes ``server.pem`` and ``server.key``, and beforehand, where there is none yet, the authority that signs them:
``ca.crt``, which every site gets, and ``ca.key``, which should lie on no machine that is online. The second makes ``north``,
in the form that ``ssh-keygen -t ecdsa -b 384`` writes, and ``north.pub``: a site makes both at home and hands out only the
public half.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dpfed.errors import UserError
from dpfed.federation.provisioning.certificates import make_certificates, make_node_key

__all__ = ["main", "make_certificates", "make_node_key"]


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m server.certificates", description="Certificates and keys of a federation.")
    parser.add_argument("folder", type=Path, help="where the files are put")
    parser.add_argument("--host", action="append", default=[], help="a name or IP address of the SuperLink; may be repeated")
    parser.add_argument("--node", action="append", default=[], help="name of a SuperNode; may be repeated")
    options = parser.parse_args(arguments)
    if not options.host and not options.node:
        parser.error("give --host for a server's certificate, --node for a SuperNode's key pair, or both")
    try:
        if options.host:
            make_certificates(options.folder, options.host)
        for name in options.node:
            make_node_key(options.folder, name)
    except UserError as error:
        sys.exit(f"{parser.prog}: {error}")


if __name__ == "__main__":
    main()
