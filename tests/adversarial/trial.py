"""Runs one command on one damaged file and judges what happened; ``KIND SEED`` replays a case.

python tests/adversarial/trial.py "native bag" 17
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [
    path for path in (str(_HERE), str(_HERE.parent / "support")) if path not in sys.path
]

from kinds import KINDS, Kind, make_material  # noqa: E402
from mutations import CANARY, mutate  # noqa: E402

LIMIT_S = 60.0
"""What takes longer is a hang; valid files take less than two seconds."""
MEMORY_LIMIT = 6 * 2**30
"""Bytes of address space of the process that runs a case."""
BAD = ("fault", "hang", "crash", "silent change")
OUTCOMES = ("rejected", "accepted", *BAD)


class Case(NamedTuple):
    """One damaged file."""

    kind: str
    seed: int


class Verdict(NamedTuple):
    """What became of a case."""

    case: Case
    outcome: str
    damage: str = ""
    command: str = ""
    output: str = ""

    def describe(self) -> str:
        """What a failing test prints."""
        replay = f'python tests/adversarial/trial.py "{self.case.kind}" {self.case.seed}'
        lines = [f"{self.outcome}: {self.damage}", f"  sacmil {self.command}"[:300]]
        return "\n".join([*lines, f"  replay: {replay}", f"  {self.output[-600:]}"])


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    output: str


def run_command(line: str) -> Ended:
    """Run ``sacmil LINE`` in this process."""
    words = line.split()
    stream = io.StringIO()
    with (
        contextlib.redirect_stdout(stream),
        contextlib.redirect_stderr(stream),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("default")
        code = {"view": _view, "read": _read}.get(words[0], _call_main)(words)
    return Ended(code, stream.getvalue())


def _call_main(words: Sequence[str]) -> int:
    from sacmil.cli.main import main

    before, sys.argv = sys.argv, ["sacmil", *words]
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        sys.argv = before
    return 0


def _read(words: Sequence[str]) -> int:
    """Read a bag of another toolkit; words as of a command."""
    from sacmil import read_bag
    from sacmil.errors import SacMILError

    try:
        read_bag(words[1], mpp=0.25, patch_size=512)
    except (SacMILError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except Exception as error:
        print(f"Traceback: this is a fault of sacmil: {error!r}")  # noqa: T201
        return 1
    return 0


def _view(words: Sequence[str]) -> int:
    """Everything the viewer's page asks for; a status of 500 is a fault."""
    from asgi_caller import fetch_async

    from sacmil.errors import SacMILError
    from sacmil.viewer.access import AllowedHosts
    from sacmil.viewer.app import create_app
    from sacmil.viewer.content import ResultsApi
    from sacmil.viewer.workers import WorkQueue

    try:
        content = ResultsApi(words[1])
    except SacMILError as error:
        print(f"Error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    queue = WorkQueue(1)
    hosts, static = AllowedHosts.from_address("127.0.0.1", 8765), Path(words[1])
    app = create_app(content, hosts, queue=queue, document_queue=queue, static=static)
    statuses = []
    try:
        for path in ("results", "slides/0", *(f"slides/0/{name}" for name in _SLIDE_PARTS)):
            reply = asyncio.run(fetch_async(app, f"/api/{path}"))
            statuses.append(reply.status)
            print(reply.status, path, reply.body[:200] if reply.status >= 400 else "")  # noqa: T201
    except Exception as error:  # what the server would log with a traceback
        print(f"Traceback: this is a fault of sacmil: {error!r}")  # noqa: T201
    finally:
        queue.close()
        content.close()
    if any(status >= 500 for status in statuses):
        print("this is a fault of sacmil: a status of 500")  # noqa: T201
    return int(any(status >= 400 for status in statuses))


_SLIDE_PARTS = ("thumbnail", "truth", "scores/0", "tiles/8/0_0.jpg", "tiles/0/0_0.jpg")


def run_case(case: Case, material: Path, folder: Path) -> Verdict:
    """Damage a copy of the material as the seed says, run a command on it, and judge.

    Args:
        case: which damage.
        material: the valid files.
        folder: where to work; removed before.
    """
    kind, random = KINDS[case.kind], Random(f"{case.kind} {case.seed}")
    target, command = random.choice(kind.files), random.choice(kind.commands)
    copy_material(material, folder, {*kind.needs, target})
    expected = _run_on_valid(material, folder, kind, command)
    damage = f"{target}, {mutate(random, folder / target, kind.changes)}"
    with contextlib.chdir(folder):
        ended = run_command(command.format(d=folder))
    outcome = _judge(ended, folder)
    if outcome == "accepted" and expected and _is_silent(expected, _reading(ended, folder)):
        outcome = "silent change"
    return Verdict(case, outcome, damage, command, ended.output)


def copy_material(material: Path, folder: Path, names: Iterable[str]) -> None:
    """Put some of the valid files into a folder that holds nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in sorted(names):
        source, target = material / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            shutil.copy(source, target)


def _judge(ended: Ended, folder: Path) -> str:
    tables = [f for f in folder.glob("out/*") if f.suffix in (".csv", ".json") and f.is_file()]
    text = ended.output + "".join(f.read_text(errors="replace") for f in tables)
    if (folder / CANARY).exists():
        return "fault"  # code in the file was run
    if "MemoryError" in text:
        return "crash"
    if any(words in text for words in ("fault of sacmil", "Traceback", "ended by itself")):
        return "fault"
    if ended.code and not ended.output.strip():
        return "fault"  # an error without a word
    return "rejected" if ended.code else "accepted"


class Reading(NamedTuple):
    """What a command predicted, and its warnings and errors."""

    predictions: list[list[str]]
    words: set[str]


_known: dict[str, Reading] = {}


def _run_on_valid(material: Path, folder: Path, kind: Kind, command: str) -> Reading | None:
    """What the command predicts from undamaged files; None where that is not compared."""
    if not kind.is_protected or not command.startswith("predict"):
        return None
    if command not in _known:
        valid = folder.parent / f"{folder.name}-valid"
        copy_material(material, valid, {*kind.needs, *kind.files})
        _known[command] = _reading(run_command(command.format(d=valid)), valid)
        shutil.rmtree(valid)
    return _known[command]


def _reading(ended: Ended, folder: Path) -> Reading:
    file = folder / "out/predictions.csv"
    lines = file.read_text().splitlines() if file.is_file() else []
    rows = list(csv.DictReader(lines))
    kept = [[row["slide_id"], row["predicted"], *_probabilities(row)] for row in rows]
    output = ended.output.replace(str(folder), "FOLDER").splitlines()
    return Reading(kept, {line for line in output if line.startswith(("Warning", "Error"))})


def _probabilities(row: dict[str, str]) -> list[str]:
    return [f"{name} {value}" for name, value in row.items() if name.startswith("p_")]


def _is_silent(expected: Reading, found: Reading) -> bool:
    return found.predictions != expected.predictions and not found.words - expected.words


# Many cases ------------------------------------------------------------------------------------


def make_cases(count: int, kinds: Iterable[str] = KINDS) -> list[Case]:
    """So many cases, shared out evenly over the kinds."""
    names = list(kinds)
    return [Case(names[n % len(names)], n // len(names)) for n in range(count)]


def run_cases(cases: Iterable[Case], material: Path, folder: Path, workers: int) -> list[Verdict]:
    """Run each case in a worker process, with a limit of time and memory."""
    from sacmil.parallel import WorkerPool

    verdicts = []
    with WorkerPool(workers, memory_limit=MEMORY_LIMIT) as pool:
        for case in cases:
            place = folder / f"{case.kind}-{case.seed}".replace(" ", "-").replace(":", "")
            pool.submit(case, run_case, case, material, place, limit_s=LIMIT_S)
        while (outcome := pool.next_outcome()) is not None:
            verdicts.append(outcome.value or _judge_failure(outcome.key, str(outcome.failure)))
    return verdicts


def _judge_failure(case: Case, failure: str) -> Verdict:
    outcome = "hang" if "took longer" in failure else "crash"
    return Verdict(case, outcome, output=failure)


def print_table(verdicts: Iterable[Verdict]) -> str:
    """The table of docs/reference/reliability.md."""
    counts = Counter((verdict.case.kind, verdict.outcome) for verdict in verdicts)
    kinds = list(dict.fromkeys(kind for kind, _ in sorted(counts, key=lambda pair: pair[0])))
    rows = [[kind, *(counts[kind, outcome] for outcome in OUTCOMES)] for kind in kinds]
    total = ["**all**", *(sum(row[n + 1] for row in rows) for n in range(len(OUTCOMES)))]
    head = ["kind of input", "inputs", *OUTCOMES]
    lines = [head, ["---"] * len(head)]
    lines += [[row[0], sum(row[1:]), *row[1:]] for row in (*rows, total)]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def main() -> None:
    """Replay one case and keep its folder."""
    import tempfile

    kind, seed = sys.argv[1], int(sys.argv[2])
    folder = Path(tempfile.mkdtemp(prefix="sacmil-trial-"))
    material = make_material(folder / "material", run_command)
    verdict = run_case(Case(kind, seed), material, folder / "case")
    print(verdict.output, verdict.describe(), f"files: {folder / 'case'}", sep="\n")  # noqa: T201


if __name__ == "__main__":
    main()
