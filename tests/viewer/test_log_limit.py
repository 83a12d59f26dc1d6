"""However much goes wrong, the log stays small."""

from __future__ import annotations

import logging

from sacmil.viewer.log_limit import LogLimit


def test_a_flood_of_errors_leaves_few_lines_and_their_count(caplog) -> None:
    now = [0.0]
    logger = logging.Logger("flood")
    logger.addHandler(caplog.handler)
    logger.addFilter(LogLimit(5, 60, lambda: now[0]))
    for number in range(1000):
        logger.error("failed %d", number)
    now[0] = 61
    logger.error("failed %s", "later")
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [*(f"failed {n}" for n in range(5)), "failed later (995 more left out)"]
