"""`python -m dpfed` is the `dpfed` command."""

import os
import sys

import dpfed

if dpfed.__file__ is None:
    # A folder of this name, such as a checkout, lies in the working directory. Python prefers it to a package that the finder
    # of an editable installation knows. It is none of this program's, so it is passed over, also in processes that it starts.
    sys.path = [path for path in sys.path if not os.path.isdir(os.path.join(path, "dpfed"))]
    del sys.modules["dpfed"]

from dpfed.console.interruption import accept, exit_code, interruptible


def main() -> None:
    """Entry point. Ctrl-C is answered from the first import on."""
    with interruptible():
        try:
            from dpfed.cli import main as run_command
        except BaseException:  # an interruption, and what an import makes of one
            if (code := exit_code()) is None:
                raise
            accept()
            print("stopped.", file=sys.stderr)
            sys.exit(code)
        run_command()


if __name__ == "__main__":
    main()
