"""`walras` with its event loop timed: `python -m benchmarks.watched_server REPORT server --data DIR ...`.

SIGUSR1 forgets what was timed so far (the end of a warm-up). REPORT is written when the command ends:
`{"longest_processor_s": ..., "longest_wall_s": ..., "callbacks": ..., "longest": [[seconds, what], ...]}`.
"""

import json
import signal
import sys
from pathlib import Path

from benchmarks.loop_watch import LoopWatch, watched
from walras.cli.main import main


def run(report: Path, arguments: list[str]) -> int:
    """Run the command under the watch; returns its exit code."""
    with watched() as watch:

        def forget(*_: object) -> None:
            fresh = LoopWatch()
            watch.processor[:], watch.wall[:], watch.callbacks = fresh.processor, fresh.wall, 0

        signal.signal(signal.SIGUSR1, forget)
        sys.argv = ["walras", *arguments]
        code: object = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        report.write_text(
            json.dumps(
                {
                    "longest_processor_s": watch.longest_processor_s,
                    "longest_wall_s": watch.longest_wall_s,
                    "callbacks": watch.callbacks,
                    "longest": sorted(watch.processor, reverse=True)[:5],
                }
            )
        )
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
