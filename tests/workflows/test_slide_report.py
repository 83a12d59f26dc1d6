"""A slide's page says what was answered in plain words, and asks the network for nothing."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sacmil.results import ModelInfo, StoredPrediction
from sacmil.tasks import Classification, Ordinal, Regression, format_probability
from sacmil.tasks._explanation import describe_prediction
from sacmil.workflows.prediction_folder import (
    BagFile,
    PredictionFolder,
    SlidePredictions,
)
from sacmil.workflows.slide_report import (
    ModelSummary,
    render_slide_report,
    write_slide_report,
)

CLASSES = ("normal", "tumour")
TASK = Classification(CLASSES)
MODEL = ModelInfo("m", "ab", 3)
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


def make_prediction(
    *parts: tuple[float, ...], model: str = "m", **changes: Any
) -> StoredPrediction:
    given = np.array(parts)
    spread = tuple(given.std(axis=0).tolist()) if len(parts) > 1 else None
    facts = {"model": model, "hash": "ab", "scores": "scores/m/s.npz", "seconds": 0.5}
    mean = tuple(given.mean(axis=0).tolist())
    return StoredPrediction(**(facts | {"values": mean, "members": parts, "spread": spread}
                          | changes))  # fmt: skip


def record(*answers: StoredPrediction, **changes: Any) -> SlidePredictions:
    facts: dict[str, Any] = {
        "slide_id": "s",
        "item": "/data/s.svs",
        "bag": BagFile("/data/s.h5", 1, 1),
        "classes": CLASSES,
        "instances": 1234,
        "encoder": "lite0",
        "patch_um": 128.0,
        "mpp": 0.5,
        "size": (9000, 7000),
        "bounds_origin": None,
        "answers": answers,
    }
    return SlidePredictions(**(facts | changes))


def write_pictures(folder: Path) -> dict[str, str]:
    noise = np.random.default_rng(0).integers(0, 255, (300, 400, 3), np.uint8)
    for kind in ("overlay", "tiles"):
        Image.fromarray(noise).save(folder / f"{kind}.png")
    return {kind: f"{kind}.png" for kind in ("overlay", "tiles")}


# Words.


@pytest.mark.parametrize(
    ("probabilities", "words"),
    [
        ((0.05, 0.95), "clearly favours tumour over normal (probability 0.95)"),
        ((0.0, 1.0), "clearly favours tumour over normal (probability > 0.99)"),
        ((0.2, 0.8), "leans towards tumour, but not clearly (probability 0.80)"),
        ((0.6, 0.4), "undecided between normal and tumour (probability 0.60)"),
    ],
)
def test_a_probability_is_read_in_plain_words(
    probabilities: tuple[float, float], words: str
) -> None:
    text = describe_prediction(CLASSES, make_prediction(probabilities))
    assert words in text
    assert "not the probability of a disease" in text
    assert "members" not in text


def test_members_that_agree_and_members_that_do_not_are_described() -> None:
    agreed = describe_prediction(CLASSES, make_prediction((0.12, 0.88), (0.04, 0.96)))
    assert (
        "Both members agree; their probabilities range from 0.88 to 0.96 (spread 0.04)." in agreed
    )
    apart = describe_prediction(CLASSES, make_prediction((0.1, 0.9), (0.8, 0.2), (0.2, 0.8)))
    assert "2 of 3 members predict tumour; their probabilities range from 0.20 to 0.90" in apart
    assert "They disagree a lot" in apart
    assert "They disagree" not in agreed
    surer = describe_prediction(CLASSES, make_prediction((0.45, 0.55), (0.01, 0.99)))
    assert "Their confidence differs a lot" in surer
    assert "disagree" not in surer


def test_of_many_classes_the_two_nearest_are_named() -> None:
    classes = ("a", "b", "c")
    assert "undecided between b and c" in describe_prediction(
        classes, make_prediction((0.2, 0.45, 0.35))
    )
    assert "clearly favours c over the 2 other classes" in describe_prediction(
        classes, make_prediction((0.01, 0.01, 0.98))
    )


@pytest.mark.parametrize("probability", np.linspace(0, 1, 41).tolist())
def test_no_rounding_makes_a_certainty(probability: float) -> None:
    assert format_probability(probability) not in ("0.00", "1.00")


# The page.


class _Links(HTMLParser):
    """What a page would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]
        assert not any(name.startswith("on") for name, _ in attrs)


def test_the_page_holds_the_answer_the_pictures_and_the_card(tmp_path: Path) -> None:
    answer = make_prediction((0.1, 0.9), (0.3, 0.7), pictures=write_pictures(tmp_path))
    facts = ModelSummary("m", {"Kind": "sac_mil", "Trained on": "99 slides"})
    text = render_slide_report(
        tmp_path, record(answer, warnings=("odd bag",)), [MODEL], [facts], TASK
    )
    for words in (
        "tumour",
        "0.80",
        "Research use only",
        "not a medical device",
        "99 slides",
        "odd bag",
        "1,234, 128 µm a side",
        "9,000 x 7,000 pixels",
        "s.svs",
    ):
        assert words in text
    assert text.count("data:image/jpeg;base64,") == 2
    assert "/data/" not in text, "where files lie is nobody's business"


def test_of_several_models_the_joint_answer_leads_and_all_are_listed(tmp_path: Path) -> None:
    one, other = (
        make_prediction((0.9, 0.1), model="one"),
        make_prediction((0.2, 0.8), model="other"),
    )
    joint = make_prediction((0.9, 0.1), (0.2, 0.8), model="ensemble")
    models = [ModelInfo(name, "ab") for name in ("one", "other", "ensemble")]
    text = render_slide_report(tmp_path, record(one, other, joint), models, [], TASK)
    assert "Prediction of ensemble" in text
    rows = re.findall(r"<tr><td>(\w+)</td><td>(\w+)</td>", text)
    assert rows == [("one", "normal"), ("other", "tumour"), ("ensemble", "normal")]
    assert "There is no heatmap" in text


def test_an_expected_level_is_not_listed_among_probabilities(tmp_path: Path) -> None:
    task = Ordinal(("low", "mid", "high"))
    answers = [make_prediction((0.1, 0.4, 0.5, 1.4), model=name) for name in ("one", "other")]
    models = [ModelInfo(name, "ab") for name in ("one", "other")]
    given = record(*answers, classes=task.value_names)
    text = render_slide_report(tmp_path, given, models, [], task)
    assert "expected level from 0 (low) to 2 (high): 1.40" in text
    assert "<th>high</th></tr>" in text
    assert "&gt; 0.99" not in text


def test_spreads_of_numbers_of_any_size_are_shown(tmp_path: Path) -> None:
    task = Regression("ki67")
    parts = ((1e-5,), (3e-5,))
    answers = [make_prediction(*parts, model=name) for name in ("one", "other")]
    models = [ModelInfo(name, "ab") for name in ("one", "other")]
    given = record(*answers, classes=task.value_names)
    text = render_slide_report(tmp_path, given, models, [], task)
    assert "<td>0.00002 ± 0.00001</td>" in text


def test_classes_are_shown_one_by_one_the_most_probable_first(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path)
    drawn = dict.fromkeys(("a", "b", "c"), "overlay.png")
    answer = make_prediction((0.2, 0.5, 0.3), pictures=pictures, class_pictures=drawn)
    text = render_slide_report(
        tmp_path,
        record(answer, classes=("a", "b", "c")),
        [MODEL],
        [],
        Classification(("a", "b", "c")),
    )
    assert re.findall(r"<figcaption>(\w): ([\d.]+)</figcaption>", text) == [
        ("b", "0.50"),
        ("c", "0.30"),
        ("a", "0.20"),
    ]
    assert "Heatmaps by class" not in render_slide_report(
        tmp_path, record(make_prediction((0.2, 0.8))), [MODEL], [], TASK
    )


def test_all_a_page_shows_is_within_it(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path)
    answer = make_prediction(
        (0.2, 0.8), pictures=pictures, class_pictures={"tumour": "overlay.png"}
    )
    links = _Links()
    text = render_slide_report(
        tmp_path, record(answer), [MODEL], [ModelSummary("m", {"Kind": "sac_mil"})], TASK
    )
    links.feed(text)
    assert len(links.sources) == 3
    assert all(source.startswith("data:image/jpeg;base64,") for source in links.sources)
    assert not {"script", "link", "iframe", "object", "embed", "form", "base"} & set(links.tags)
    assert "url(" not in text
    assert "@import" not in text


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style></title><h1>x",
    "{title}{0}",
    "a\u202eb\x00\x1b[31m",
    "&lt;b&gt;",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_everything_on_the_page_is_text(tmp_path: Path, text: str) -> None:
    def hostile(name: str) -> _Links:
        answer = make_prediction((0.1, 0.9), (0.3, 0.7), model=name)
        made = record(
            answer,
            slide_id=name,
            item=f"/x/{name}",
            classes=(name, f"{name}2"),
            encoder=name,
            warnings=(name,),
        )
        facts = [ModelSummary(name, {name: name}), ModelSummary("other", {})]
        links = _Links()
        links.feed(render_slide_report(tmp_path, made, [ModelInfo(name, "ab")], facts, TASK))
        return links

    assert hostile(text).tags == hostile("harmless").tags
    assert hostile(text).sources == []


def test_the_page_is_written_whole_under_a_harmless_name(tmp_path: Path) -> None:
    path = write_slide_report(
        PredictionFolder(tmp_path),
        record(make_prediction((0.1, 0.9)), slide_id="../x"),
        [MODEL],
        [],
        TASK,
    )
    assert path.parent == tmp_path / "reports"
    assert path.read_text(encoding="utf-8").endswith("</html>\n")


# In a browser.


@pytest.fixture
def server() -> Iterator[tuple[int, list[bytes]]]:
    """A port of this machine, and the requests to it."""
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def listen() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    requests.append(connection.recv(200))

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield listening.getsockname()[1], requests
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def look(path: Path, profile: Path) -> Path:
    """A screenshot by a browser that reaches this machine and no other."""
    assert BROWSER
    picture = profile / "screen.png"
    rules = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    quiet = ("--disable-background-networking", "--disable-component-update", "--no-first-run")
    size = ("--window-size=900,1600", "--hide-scrollbars", "--disable-gpu")
    profile.mkdir(exist_ok=True)
    arguments = (f"--user-data-dir={profile}", f"--screenshot={picture}", path.as_uri())
    subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", *quiet, *size, rules, *arguments],
        check=True,
        capture_output=True,
        timeout=120,
    )
    return picture


@pytest.mark.skipif(BROWSER is None, reason="needs a browser: apt install chromium")
def test_opened_from_disk_in_a_browser_no_request_leaves(
    tmp_path: Path, server: tuple[int, list[bytes]]
) -> None:
    port, requests = server
    bait = f'<img src="http://127.0.0.1:{port}/x.png"><style>@import "http://127.0.0.1:{port}/y";'
    (tmp_path / "bait.html").write_text(bait)
    look(tmp_path / "bait.html", tmp_path / "profile")
    assert len(requests) >= 2, "the test itself: a page that asks is heard"
    requests.clear()
    answer = make_prediction((0.1, 0.9), (0.3, 0.7), model=bait, pictures=write_pictures(tmp_path))
    made = record(answer, slide_id=bait, classes=(bait, "tumour"), warnings=(f"{bait}</style>",))
    facts = [ModelSummary(bait, {bait: bait})]
    task = Classification((bait, "tumour"))
    path = write_slide_report(
        PredictionFolder(tmp_path), made, [ModelInfo(bait, "ab")], facts, task
    )
    picture = look(path, tmp_path / "profile")
    assert requests == []
    with Image.open(picture) as image:
        colours = image.convert("RGB").getcolors(2**24)
    assert len(colours) > 10_000, "the pictures are seen"
