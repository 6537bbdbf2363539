"""Guards of requests: an allow-list, which comes before anything else sees a request.

Loopback is no boundary: other users of the machine reach it, and so does every page that a browser shows. So a request
must

- be a GET of a path that is served, letter for letter;
- name in ``Host`` the address that was printed, so that a name which somebody makes point to 127.0.0.1 is of no use;
- come, if it has an ``Origin``, from the page itself;
- have the token in ``Authorization``, unless it is for the page itself, which holds no data.

The token stands in the fragment of the address that is printed. Browsers do not send fragments, so that it is in no
log and in no ``Referer``.
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
"""With each answer."""

_ONCE = (b"host", b"origin", b"authorization", b"sec-fetch-site")


class Guards:
    """Lets through what is allowed.

    Args:
        app: What answers then.
        token: That the pages were opened with.
        is_own: Tells whether the value of a ``Host`` is ours.
        pages: Paths that need no token.
        paths: Paths that need one.
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
        """Answer a request, or have it answered."""
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
    400: "A header is there twice.",
    401: "The token is missing or wrong. Open the address that `hocket dashboard` printed.",
    403: "This page is served to its own address and its own scripts only.",
    404: "There is nothing here.",
    405: "Only plain GET is answered.",
}
