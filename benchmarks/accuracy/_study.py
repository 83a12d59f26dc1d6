"""The command line of every study: what it asks of a study is a list of jobs.

Development (the default) looks only at synthetic seeds 0 to 9 and repeat 1 of cross-validation.
``--confirm`` runs fresh seeds and repeats, with the code as it is, once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.accuracy._confirm import begin_to_confirm, finish_confirming
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._lines import Line, Lines
from benchmarks.accuracy._queue import Clock, tell, work
from benchmarks.accuracy._tasks import SIZES, Size
from benchmarks.accuracy._train import Place

RESULTS = Path(__file__).parent / "results"
DEVELOPED, CONFIRMED = 0, 10
"""First synthetic seed of each phase."""


@dataclass(frozen=True)
class Request:
    """What a study is asked for."""

    size: Size
    confirm: bool
    developed: Sequence[Line]
    """Lines of the development phase: where tuning is read from."""
    features: Path | None = None
    """Folder of the features of real sets."""

    def seeds(self, count: int) -> range:
        """Of synthetic cohorts: 0 to 9 belong to development."""
        first = CONFIRMED if self.confirm else DEVELOPED
        assert self.confirm or count <= CONFIRMED
        return range(first, first + count)

    @property
    def repeats(self) -> Sequence[int]:
        """Of cross-validation: the first belongs to development; 2 to 5 have been looked at."""
        return (6, 7, 8, 9) if self.confirm else (1,)

    def folds(self, count: int) -> range:
        """Of cross-validation."""
        return range(count if self.size.folds is None else min(count, self.size.folds))


Jobs = Callable[[Request], Sequence[Job]]
"""All jobs of a study that can be said now; tuning says more once it is done."""


def main(
    name: str,
    jobs: Jobs,
    about: str,
    arguments: Sequence[str] | None = None,
    *,
    developed: str = "",
) -> None:
    """Run a study; exit code 1 where something is left to be done.

    Args:
        name: of the study, and of its files.
        jobs: what it consists of.
        about: told by ``--help``.
        arguments: of the command line.
        developed: the study whose development it goes on from, where that is another.
    """
    options = _parser(about).parse_args(arguments)
    file = f"{name}.confirm.csv" if options.confirm else f"{name}.csv"
    lines = Lines(options.results / file)
    place = Place(options.scratch, options.device, options.features, options.outlines)
    clock = Clock(options.budget_minutes)
    while True:
        told = Lines(options.results / f"{developed or name}.csv").lines
        request = Request(SIZES[options.size], options.confirm, told, options.features)
        asked = [job for job in jobs(request) if _wanted(job, options.only)]
        if options.list:
            return _list(asked, lines)
        if options.confirm:
            begin_to_confirm(options.results / f"{name}.confirm.json")
        if all(job.key in lines.done() for job in asked):
            break
        if not work(asked, lines, place, options.workers, clock) or _stuck(asked, lines):
            raise SystemExit(1)
    if options.confirm and not options.only:
        finish_confirming(options.results / f"{name}.confirm.json")
    return tell(f"{lines.path}: all {len(asked)} jobs are done")


def _parser(about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of CSV files")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp/accuracy"), help="for bags")
    parser.add_argument("--features", type=Path, help="folder of real sets, made by features.py")
    parser.add_argument("--outlines", type=Path, help="tumour outlines of CAMELYON16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--budget-minutes", type=float, default=9.0)
    parser.add_argument("--size", choices=sorted(SIZES), default="full")
    parser.add_argument("--only", nargs="*", default=[], help="tasks or variants")
    parser.add_argument("--confirm", action="store_true", help="fresh seeds and repeats, once")
    parser.add_argument("--list", action="store_true", help="print what would be done")
    return parser


def _wanted(job: Job, only: Sequence[str]) -> bool:
    return not only or job.task in only or job.variant in only


def _stuck(asked: Sequence[Job], lines: Lines) -> bool:
    """Whether something failed: it is tried again when the command is given again."""
    failed = [job for job in asked if job.key not in lines.done()]
    if failed:
        tell(f"{len(failed)} jobs failed; see the column failure of {lines.path}")
    return bool(failed)


def _list(asked: Sequence[Job], lines: Lines) -> None:
    done = lines.done()
    for job in asked:
        print("done" if job.key in done else "    ", job.task, job.variant, job.fold, job.role)
    print(f"{len(asked)} jobs, {sum(job.key in done for job in asked)} done")
