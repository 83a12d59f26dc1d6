"""An answer that says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.responses import Response


def make_error_response(
    status: int, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    """``{"error": sentence}``.

    Args:
        status: of HTTP.
        message: for the person before the page.
        headers: besides the usual ones.
    """
    # plain ASCII, for a name on disk may hold what has no place in UTF-8
    body = json.dumps({"error": message}).encode("ascii")
    return Response(body, status, headers, "application/json")
