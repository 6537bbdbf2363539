"""What the operations call in workers. It imports nothing, so that a worker's start is not that of numpy and rich."""


def small_value(*_: object) -> bytes:
    return b"ok"


class Server:
    """Answers calls."""

    def small_value(self) -> bytes:
        return b"ok"

    def small_value_arg(self, value: object) -> bytes:
        return b"ok"


class AsyncServer:
    """Answers calls in an event loop."""

    async def small_value(self) -> bytes:
        return b"ok"

    async def small_value_arg(self, value: object) -> bytes:
        return b"ok"
