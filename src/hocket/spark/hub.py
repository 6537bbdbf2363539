"""The driver's end of the wires to the ranks: one socket that listens, and a thread for each that has called.

A thread only puts what comes into a queue; one thread, that of the run, takes it from there. Who calls shows that he
knows the key of the attempt, which went to the tasks inside of the job, and the driver shows it to him.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import secrets
import socket
import struct
import threading
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError, connection
from typing import Final, final

from hocket.spark import messages


@final
@dataclass(frozen=True, slots=True)
class Lost:
    """A rank's process has closed its wire."""


@final
@dataclass(frozen=True, slots=True)
class JobEnded:
    """Spark's job is over."""

    error: BaseException | None


Event = tuple[int, messages.FromRank | Lost | JobEnded]
"""The number of a task, and what has come of it; of the job, -1."""

JOB: Final = -1

_PATIENCE_SECONDS: Final = 10  # for a caller who has not shown yet that he knows the key. A guess


@dataclass(frozen=True, slots=True)
class _Wire:
    """A socket, and the form of messages on it."""

    socket: socket.socket
    connection: connection.Connection
    lock: threading.Lock = field(default_factory=threading.Lock)

    def hang_up(self) -> None:
        """Have whoever reads or writes, at either end, see its end."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


def _set_patience(wire: socket.socket, seconds: int) -> None:
    """Have reads fail that wait for so long; 0 is for ever."""
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", seconds, 0))


@final
class Hub:
    """Takes the calls of an attempt's tasks. `close` must be called.

    Args:
        host: The address of this machine at which Spark's machines reach it.
    """

    def __init__(self, host: str) -> None:
        self.key = secrets.token_bytes(32)
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._wires: dict[int, _Wire] = {}
        self._open: list[_Wire] = []
        self._lock = threading.Lock()
        self._is_closed = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=256)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._threads = [threading.Thread(target=self._listen, name="hocket-spark", daemon=True)]
        self._threads[0].start()

    def send(self, index: int, message: messages.ToRank) -> None:
        """Send a task something; nothing if it is gone, which an event says."""
        wire = self._wires[index]
        blob = messages.encode(message)
        with wire.lock, contextlib.suppress(OSError):
            wire.connection.send_bytes(blob)

    def close(self) -> None:
        """Hang up on all. A rank that still runs ends at once."""
        with self._lock:
            self._is_closed = True
            for wire in self._open:
                wire.hang_up()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        while self._threads:
            self._threads.pop().join()
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                called, _ = self._listener.accept()
            except OSError:
                return
            wire = _Wire(called, connection.Connection(os.dup(called.fileno())))
            with self._lock:
                if self._is_closed:
                    wire.connection.close()
                    called.close()
                    return
                self._open.append(wire)
                thread = threading.Thread(target=self._serve, args=(wire,), name="hocket-spark", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, wire: _Wire) -> None:
        index: int | None = None
        try:
            _set_patience(wire.socket, _PATIENCE_SECONDS)
            connection.deliver_challenge(wire.connection, self.key)
            connection.answer_challenge(wire.connection, self.key)
            _set_patience(wire.socket, 0)
            while True:
                message: messages.FromRank = pickle.loads(wire.connection.recv_bytes())
                if isinstance(message, messages.Died):
                    self.events.put((message.index, message))
                elif isinstance(message, messages.Hello):
                    if message.index in self._wires:  # Spark has begun the stage again, which is not wanted
                        return
                    index = message.index
                    self._wires[index] = wire
                    self.events.put((index, message))
                elif index is not None:
                    self.events.put((index, message))
        except (AuthenticationError, EOFError, OSError):
            pass
        except Exception as error:  # noqa: BLE001 (such as what a rank returns, of a class that is not here)
            if index is not None:
                failure = messages.describe_failure(error, "reading what a rank has sent", (__file__,))
                self.events.put((index, messages.Failed(failure)))
        finally:
            if index is not None:
                self.events.put((index, Lost()))
            wire.hang_up()
            with self._lock:
                self._open.remove(wire)
            with wire.lock:
                wire.connection.close()
                wire.socket.close()
