"""The driver's end of the connections to the ranks: a listening socket, and a thread for each connection.

A connection's thread only puts messages into a queue; the run's thread takes them out. Both sides prove that they know
the key of the attempt, which the tasks got inside of the job.
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
    """An event: a rank's process has closed its connection."""


@final
@dataclass(frozen=True, slots=True)
class JobEnded:
    """An event: Spark's job has ended."""

    error: BaseException | None


Event = tuple[int, messages.FromRank | Lost | JobEnded]
"""The number of a task, or `JOB`, and an event of it."""

JOB: Final = -1

_PATIENCE_SECONDS: Final = 10  # for a caller that has not proved yet that it knows the key. A guess


@dataclass(frozen=True, slots=True)
class _Wire:
    """A socket, and its connection for messages."""

    socket: socket.socket
    connection: connection.Connection
    lock: threading.Lock = field(default_factory=threading.Lock)

    def hang_up(self) -> None:
        """Shut the connection down. Reads and writes at both ends see its end."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


def _set_patience(wire: socket.socket, seconds: int) -> None:
    """Set the time-out of reads, in seconds; 0 waits for ever."""
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", seconds, 0))


@final
class Hub:
    """The end of the connections from an attempt's tasks. The owner must call `close`.

    Args:
        host: This machine's address for Spark's machines.
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
        """Send a message to a task. If the task is gone, do nothing: a `Lost` event reports that."""
        wire = self._wires[index]
        blob = messages.encode(message)
        with wire.lock, contextlib.suppress(OSError):
            wire.connection.send_bytes(blob)

    def close(self) -> None:
        """Close all connections. A rank that still runs ends at once."""
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
                    if message.index in self._wires:  # Spark has started the stage again, which must not count
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
                failure = messages.describe_failure(error, "reading a rank's message", (__file__,))
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
