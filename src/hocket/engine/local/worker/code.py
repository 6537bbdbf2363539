"""The code of functions, and the arguments that come with tasks and calls."""

from __future__ import annotations

import os
from typing import Any, final

from hocket.engine import contract, values
from hocket.engine.local import messages, payloads, worker_engine
from hocket.engine.local.work import Work


@final
class Code:
    """The functions that the process has been sent, and what is sent along with work.

    Args:
        engine: The worker's side.
    """

    def __init__(self, engine: worker_engine.WorkerEngine) -> None:
        self._engine = engine
        #: Functions that have not been loaded.
        self._codes: dict[bytes, worker_engine.Arrived] = {}
        self.functions: dict[bytes, object] = {}

    def arrive(self, payload: payloads.Payload, held: list[contract.AnyRef]) -> worker_engine.Arrived:
        """Take a payload from a message, with the descriptor that belongs to it, if one does."""
        if payload[0] == payloads.SEGMENT:
            payload = (*payload, self._engine.channel.take_descriptor())
        return worker_engine.Arrived(payload, held)

    def add(self, function_id: bytes, payload: payloads.Payload) -> None:
        """The driver has sent the code of a function."""
        self._codes[function_id] = self.arrive(payload, [])

    def forget(self, function_id: bytes) -> None:
        """Let the code of a function go; it may not even have been loaded."""
        self.functions.pop(function_id, None)
        code = self._codes.pop(function_id, None)
        if code is not None and code.payload[0] == payloads.SEGMENT:
            os.close(code.payload[-1])
            self._engine.channel.post((messages.UNMAP, code.payload[2]))

    def load(self, function_id: bytes) -> object:
        """Return a function."""
        function = self.functions.get(function_id)
        if function is None:
            function = self.functions[function_id] = self._engine.values.open_code(self._codes[function_id])
            del self._codes[function_id]  # not before: what could not be loaded now may be loaded for the next task
        return function

    def open_arguments(self, work: Work) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return the arguments of a task or call."""
        if work.args is None:
            return (), {}
        given, work.args = work.args, None
        open_payload = self._engine.values.open_payload
        args: Any
        if given.payload[0] == payloads.INLINE:
            args, kwargs = values.decode(given.payload[1], (), given.held)
        else:
            args, kwargs = open_payload(given.payload[2] if len(given.payload) > 2 else 0, given)  # type: ignore[misc]
        del given
        if work.dependencies:
            dependencies, work.dependencies = work.dependencies, []
            if len(dependencies) < values.MANY:
                found = [open_payload(object_id, arrived) for object_id, arrived in dependencies]
            else:
                with values.hold_collector():
                    found = [open_payload(object_id, arrived) for object_id, arrived in dependencies]
            del dependencies
            args, kwargs = values.fill_slots(args, kwargs, found)
        return args, kwargs

    def close_unopened(self, work: Work) -> None:
        """Give back the descriptors and counts of work that is not done here."""
        for object_id, arrived in ((0, work.args), *work.dependencies):
            if arrived is not None and arrived.payload[0] == payloads.SEGMENT:
                os.close(arrived.payload[-1])
                self._engine.channel.post((messages.UNMAP, object_id or arrived.payload[2]))
        work.clear()
