"""`python -m dpfed` is the `dpfed` command."""

import sys

from dpfed.console.interruption import accept, exit_code, interruptible


def main() -> None:
    """Entry point. Ctrl-C is answered from the first import on."""
    with interruptible():
        try:
            from dpfed.cli import main as carry_out
        except BaseException:  # an interruption, and what an import makes of one
            if (code := exit_code()) is None:
                raise
            accept()
            print("stopped.", file=sys.stderr)
            sys.exit(code)
        carry_out()


if __name__ == "__main__":
    main()
