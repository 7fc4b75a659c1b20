"""`python -m dpfed` is the `dpfed` command."""

import os
import sys

import dpfed

if dpfed.__file__ is None:
    # A folder of this name, such as a checkout, lies in the working directory. Python prefers it to a package that the finder
    # of an editable installation knows. It is none of this program's, so it is passed over, also in processes that it starts.
    sys.path = [path for path in sys.path if not os.path.isdir(os.path.join(path, "dpfed"))]
    del sys.modules["dpfed"]

from dpfed.console.interruption import Interrupted, end_at_once, exit_code, interruptible


def main() -> None:
    """Entry point. Ctrl-C is answered from the first import on, until the last line."""
    try:
        with interruptible():
            try:
                from dpfed.cli import main as run_command

                run_command()
            except BaseException as error:  # an interruption, and what an import makes of one
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
