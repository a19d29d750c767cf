"""The console script, and `python -m walras`: Ctrl-C while the commands are imported ends in one line, too."""

import os
import sys


def main() -> None:
    """Runs the command line."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # a daemon's child may have none (`>&-`), and every command expects some
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115
    try:
        from walras.cli.main import main as run_command_line
    except KeyboardInterrupt:
        sys.stderr.write("walras: interrupted\n")
        sys.exit(130)
    run_command_line()


if __name__ == "__main__":
    main()
