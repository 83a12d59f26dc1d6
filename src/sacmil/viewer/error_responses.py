"""Responses that report an error."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.responses import Response


def make_error_response(
    status: int, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response with the body ``{"error": message}``.

    Args:
        status: of HTTP.
        message: for the user.
        headers: additional ones.
    """
    # plain ASCII, as a file name may contain bytes that are not valid UTF-8
    body = json.dumps({"error": message}).encode("ascii")
    return Response(body, status, headers, "application/json")
