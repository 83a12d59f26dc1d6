"""Commands: ``python -m studies list | run NAME | report | check | features | cells``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from sacmil.errors import ConfigError, SacMILError, suggest_names
from studies.study import Study, list_studies, read_study


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code: 0 done, 1 something is left, 2 wrong use."""
    options = _make_parser().parse_args(arguments)
    try:
        return int(options.function(options) or 0)
    except SacMILError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # such as: python -m studies list | head
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        print("stopped; give the command again to go on", file=sys.stderr)
        return 1


def _make_parser() -> argparse.ArgumentParser:
    from studies.results import RESULTS

    parser = argparse.ArgumentParser(prog="python -m studies", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listed = commands.add_parser("list", help="list the studies and their rounds")
    listed.set_defaults(function=_list)
    run = commands.add_parser("run", help="run a round of a study, or go on with it")
    run.add_argument("name", help="of a study")
    run.add_argument("--round", help="id of the round; the default is the first planned one")
    run.add_argument("--tiny", action="store_true", help="a few small slides, to try it on a CPU")
    run.add_argument("--device", default="cpu", help="cpu or cuda (default cpu)")
    run.add_argument("--workers", type=int, default=1, help="processes side by side (default 1)")
    run.add_argument("--minutes", type=float, default=9.0, help="stop after (default 9)")
    run.add_argument("--data", type=Path, help="folder of real data, see features")
    run.add_argument("--outlines", type=Path, help="file of real lesion outlines")
    run.add_argument(
        "--scratch", type=Path, default=Path("runs/studies"), help="for unfinished work"
    )
    run.add_argument("--results", type=Path, default=RESULTS, help="folder of results")
    run.add_argument("--commit", default="", help="of the code, where there is no git")
    run.set_defaults(function=_run)
    report = commands.add_parser("report", help="make tables, figures and pages from the results")
    report.add_argument("names", nargs="*", help="studies; the default is all")
    report.add_argument("--results", type=Path, default=RESULTS, help="folder of results")
    report.add_argument("--docs", type=Path, help="folder of the pages (default docs/results)")
    report.add_argument("--pages", action="store_true", help="from the full tables that are there")
    report.set_defaults(function=_report)
    check = commands.add_parser("check", help="check length, headings and figures of the pages")
    check.set_defaults(function=_check)
    for name, made in (("features", "the features of pictures"), ("cells", "the sets of cells")):
        maker = import_module(f"studies.{name}")
        own = commands.add_parser(name, help=f"make {made}")
        maker.add_arguments(own)
        own.set_defaults(function=maker.run)
    return parser


def _list(options: argparse.Namespace) -> int:
    for path in list_studies():
        study = read_study(path)
        print(f"{study.name}: {study.question}")
        for one in study.rounds:
            models = f"{len(one.models)} models"
            print(f"  {one.id:<26} {one.status:<8} {one.purpose:<13} {models:<10} {one.date}")
    return 0


def _run(options: argparse.Namespace) -> int:
    from studies.data import Place
    from studies.run import RunSettings, choose_round, run_round

    study = find_study(options.name)
    place = Place(options.scratch, options.device, options.data, options.outlines)
    results = options.scratch / "tiny-results" if options.tiny else options.results
    settings = RunSettings(
        place=place,
        results=results,
        workers=options.workers,
        minutes=options.minutes,
        tiny=options.tiny,
        commit=options.commit,
    )
    is_done = run_round(study, choose_round(study, options.round, tiny=options.tiny), settings)
    return 0 if is_done else 1


def find_study(name: str) -> Study:
    """Return a study by name, or from a YAML file."""
    if Path(name).suffix == ".yaml":
        return read_study(Path(name))
    paths = {path.stem: path for path in list_studies()}
    if name not in paths:
        raise ConfigError(f"there is no study {name!r}; {suggest_names(name, paths)}")
    return read_study(paths[name])


def _report(options: argparse.Namespace) -> int:
    from studies.report import DOCS, fill_page, write_tables

    studies = [find_study(name) for name in options.names or [p.stem for p in list_studies()]]
    docs = options.docs or DOCS
    if not options.pages:
        write_tables(studies, options.results, docs)
    for study in studies:
        fill_page(study, docs)
    return 0


def _check(options: argparse.Namespace) -> int:
    from studies.pages import find_problems

    problems = find_problems()
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
