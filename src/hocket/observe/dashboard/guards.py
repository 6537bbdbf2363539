"""The guards of the dashboard: an allow-list that checks each request first.

Loopback is no boundary: other users of the machine reach it, and so does every page in a browser. So a request must

- be a GET of a served path, letter for letter;
- have the printed address in ``Host``, so that a foreign name that points to 127.0.0.1 does not work;
- come from the page itself, if it has an ``Origin``;
- have the token in ``Authorization``, except for the page itself, which holds no data.

The token is in the fragment of the printed address. Browsers do not send it, so it is in no log and no ``Referer``.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection

from starlette import responses, types

HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""The headers of each answer."""

_ONCE = (b"host", b"origin", b"authorization", b"sec-fetch-site")


class Guards:
    """The application's guards, which pass on allowed requests only.

    Args:
        app: The application.
        token: The token of the pages.
        is_own: Returns whether a value of ``Host`` is ours.
        pages: Paths without a token.
        paths: Paths with a token.
    """

    def __init__(
        self,
        app: types.ASGIApp,
        *,
        token: str,
        is_own: Callable[[bytes], bool],
        pages: Collection[str],
        paths: Collection[str],
    ) -> None:
        self._app = app
        self._authorization = f"Bearer {token}".encode()
        self._is_own = is_own
        self._pages = {path.encode() for path in pages}
        self._paths = {path.encode() for path in paths}

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        """Refuse a request, or pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        status = self._check(scope)

        async def send_with_headers(message: types.Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            await send(message)

        if status:
            await responses.PlainTextResponse(_SAID[status], status)(scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)

    def _check(self, scope: types.Scope) -> int:
        """Return the status of a refusal; 0 if the request is allowed."""
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in _ONCE and name in headers:
                return 400
            headers[name] = value
        if b"upgrade" in headers:
            return 405
        host = headers.get(b"host", b"")
        if not self._is_own(host) or headers.get(b"origin", b"") not in {b"", b"http://" + host}:
            return 403
        if headers.get(b"sec-fetch-site", b"none") not in {b"same-origin", b"none"}:
            return 403
        if scope["method"] != "GET":
            return 405
        path = scope.get("raw_path", b"")
        if path in self._pages:
            return 0
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._authorization):
            return 401
        return 0 if path in self._paths else 404


_SAID = {
    400: "A header was sent twice.",
    401: "The token is missing or wrong. Open the address that `hocket dashboard` printed.",
    403: "This page is served to its own address and its own scripts only.",
    404: "There is nothing here.",
    405: "Only GET requests without an upgrade are answered.",
}
