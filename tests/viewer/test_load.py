"""Hundreds of tiles at once are all served, within limits."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from asgi_caller import Reply, fetch, fetch_async

from sacmil.viewer.content import ByteCache


def test_hundreds_of_tiles_at_once_are_all_right_and_little_is_kept(made, make_app) -> None:
    cache = ByteCache(150_000)
    app = make_app(made, cache=cache)
    levels = fetch(app, "/api/slides/0").json()["levels"]
    positions = [(levels - 1, x, y) for y in range(5) for x in range(6)]
    positions += [(level, 0, 0) for level in range(levels - 1)]
    targets = [
        f"/api/slides/{slide}/tiles/{level}/{x}_{y}.jpg"
        for slide in (0, 1)
        for level, x, y in positions
    ]
    single = {target: fetch(app, target).body for target in targets}
    chosen = random.Random(0).choices(targets, k=300)
    replies = asyncio.run(_fetch_all(app, chosen))
    for target, reply in zip(chosen, replies, strict=True):
        assert reply.status == 200
        assert reply.body == single[target]
    assert cache.used_bytes <= 150_000 < sum(map(len, single.values()))


async def _fetch_all(app: Any, targets: list[str]) -> list[Reply]:
    return await asyncio.gather(*[fetch_async(app, target) for target in targets])
