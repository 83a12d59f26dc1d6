"""How long a command takes to say what it can do, against Python itself."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable

from benchmarks.clock import best_times

COMMANDS = {
    "python": ["-c", "pass"],
    "numpy imported": ["-c", "import numpy"],
    "sacmil imported": ["-c", "import sacmil"],
    "sacmil --help": ["-m", "sacmil", "--help"],
    "sacmil predict --help": ["-m", "sacmil", "predict", "--help"],
    "sacmil models": ["-m", "sacmil", "models"],
}


def main(arguments: list[str] | None = None) -> None:
    """Print milliseconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args(arguments)
    print("startup")
    times = best_times({name: _run(words) for name, words in COMMANDS.items()}, options.repeats)
    for name, seconds in times.items():
        print(f"  {name:<24}{1e3 * seconds:8.0f} ms{seconds / times['python']:7.1f} x")


def _run(words: list[str]) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, *words], check=True, capture_output=True)


if __name__ == "__main__":
    main()
