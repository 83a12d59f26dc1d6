"""A thousand tiles at once are all answered, within bounds."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from asgi_caller import Answered, ask, asked

from sacmil.viewer.byte_cache import ByteCache


def test_a_thousand_tiles_at_once_are_all_right_and_little_is_kept(made, make_app) -> None:
    cache = ByteCache(150_000)
    app = make_app(made, cache=cache)
    levels = ask(app, "/api/slides/0").json()["levels"]
    places = [(levels - 1, x, y) for y in range(5) for x in range(6)]
    places += [(level, 0, 0) for level in range(levels - 1)]
    targets = [
        f"/api/slides/{slide}/tiles/{level}/{x}_{y}.jpg"
        for slide in (0, 1)
        for level, x, y in places
    ]
    alone = {target: ask(app, target).body for target in targets}
    chosen = random.Random(0).choices(targets, k=1000)
    answers = asyncio.run(_together(app, chosen))
    for target, answer in zip(chosen, answers, strict=True):
        assert answer.status == 200
        assert answer.body == alone[target]
    assert cache.used_bytes <= 150_000 < sum(map(len, alone.values()))


async def _together(app: Any, targets: list[str]) -> list[Answered]:
    return await asyncio.gather(*[asked(app, target) for target in targets])
