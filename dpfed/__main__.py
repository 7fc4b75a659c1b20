"""`python -m dpfed` is the `dpfed` command."""

import os
import sys

import dpfed

if dpfed.__file__ is None:
    # The working directory contains a folder named dpfed, such as a checkout. Python prefers that folder to the package of an
    # editable installation. The folder is not this program, so this process and those that it starts skip it.
    sys.path = [path for path in sys.path if not os.path.isdir(os.path.join(path, "dpfed"))]
    del sys.modules["dpfed"]

from dpfed.console.interruption import Interrupted, end_at_once, exit_code, interruptible


def main() -> None:
    """Runs the command line. Ctrl-C is handled from the first import to the last line."""
    try:
        with interruptible():
            try:
                from dpfed.cli import main as run_command

                run_command()
            except BaseException as error:  # an interruption, or the error into which an import turns one
                if exit_code() is None:
                    raise
                raise Interrupted from error
    except Interrupted as stop:
        print("stopped.", file=sys.stderr)
        sys.exit(stop.code)
    finally:
        end_at_once()


if __name__ == "__main__":
    main()
