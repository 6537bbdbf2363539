"""Frames: whole, in pieces, with descriptors, and fuzzed."""

from __future__ import annotations

import marshal
import os
import pathlib
import resource
import select
import socket
from collections import Counter
from collections.abc import Iterator

import hypothesis
import pytest
from hypothesis import strategies as st

from hocket.engine.local import channel
from hocket.engine.local import messages as numbers


@pytest.fixture
def pair() -> Iterator[tuple[channel.Channel, channel.Channel]]:
    left, right = socket.socketpair()
    first, second = channel.Channel(left), channel.Channel(right)
    yield first, second
    first.close()
    second.close()


def receive_all(receiver: channel.Channel, sender: channel.Channel) -> list[channel.Message]:
    received: list[channel.Message] = []
    while True:
        is_sent = sender.flush()
        messages = receiver.receive()
        assert messages is not None
        received += messages
        if is_sent and not select.select([receiver.sock], [], [], 0)[0]:
            return received


def test_batch_arrives_in_order(pair: tuple[channel.Channel, channel.Channel]) -> None:
    first, second = pair
    first.post((1, b"x", None))
    first.post((2, ("nested", 3.5)))
    assert receive_all(second, first) == [(1, b"x", None), (2, ("nested", 3.5))]


def test_large_frame_comes_in_pieces_and_never_blocks(pair: tuple[channel.Channel, channel.Channel]) -> None:
    first, second = pair
    sent = (1, os.urandom(5_000_000))
    first.post(sent)
    assert not first.flush()
    assert first.has_unsent()
    first.post((2,))
    assert receive_all(second, first) == [sent, (2,)]


@pytest.mark.parametrize("count", [1, 3, 300])
def test_descriptors_come_in_order(pair: tuple[channel.Channel, channel.Channel], count: int) -> None:
    first, second = pair
    sent = [os.memfd_create("hocket-test") for _ in range(count)]
    for position, fd in enumerate(sent):
        os.write(fd, str(position).encode())
        first.post((1, position))
        first.outbox_fds.append(fd)
    assert len(receive_all(second, first)) == count
    for position, fd in enumerate(sent):
        taken = second.take_descriptor()
        assert os.pread(taken, 10, 0) == str(position).encode()
        assert not os.get_inheritable(taken)
        os.close(taken)
        os.close(fd)


@pytest.mark.slow
def test_messages_that_are_long_together_go_in_several_frames(pair: tuple[channel.Channel, channel.Channel]) -> None:
    first, second = pair
    fd = os.memfd_create("hocket-test")
    long = bytes(channel.FRAME_BYTES // 3)
    for number in range(5):
        first.post((number, long))
    first.outbox_fds.append(fd)
    assert [message[0] for message in receive_all(second, first)] == [0, 1, 2, 3, 4]
    os.close(second.take_descriptor())
    os.close(fd)


@pytest.mark.slow
def test_message_that_is_too_long_is_refused(pair: tuple[channel.Channel, channel.Channel]) -> None:
    with pytest.raises(channel.MessageError, match=r"message 7 has 1,073,741,8\d\d bytes; the limit is 1,073,741,824"):
        pair[0].post((7, bytes(channel.MAX_MESSAGE_BYTES)))
    assert pair[0].outbox == []


@pytest.mark.parametrize("part", [object(), {1: object()}, [lambda: None]], ids=["object", "in a dict", "in a list"])
def test_what_cannot_be_built_never_enters_the_outbox(
    pair: tuple[channel.Channel, channel.Channel], part: object
) -> None:
    first, second = pair
    first.post((1,))
    with pytest.raises(channel.MessageError, match="message 7 cannot be built"):
        first.post((7, part))
    first.post((2,))
    assert receive_all(second, first) == [(1,), (2,)]


def test_missing_descriptor_is_an_error(pair: tuple[channel.Channel, channel.Channel]) -> None:
    with pytest.raises(channel.FrameError, match="announced a descriptor, but none came"):
        pair[1].take_descriptor()


def test_end_of_stream(pair: tuple[channel.Channel, channel.Channel]) -> None:
    first, second = pair
    assert second.receive() == []
    first.sock.close()
    assert second.receive() is None


def test_absurd_length_is_an_error(pair: tuple[channel.Channel, channel.Channel]) -> None:
    first, second = pair
    first.sock.send(b"\xff\xff\xff\xff")
    with pytest.raises(channel.FrameError, match="a frame of 4294967295 bytes was announced"):
        second.receive()


@pytest.mark.parametrize("frame", [marshal.dumps({}), marshal.dumps([1]), marshal.dumps([()]), b"", b"\x00", b"c"])
def test_frame_without_messages_is_an_error(pair: tuple[channel.Channel, channel.Channel], frame: bytes) -> None:
    first, second = pair
    first.sock.send(len(frame).to_bytes(4, "little") + frame)
    with pytest.raises(channel.FrameError, match=r"begin with a list|list of tuples"):
        second.receive()


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Let the process have 64 MiB more than it has: a number that asks for gigabytes is then refused at once."""
    usual = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20), usual[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, usual)


@pytest.mark.slow
@pytest.mark.usefixtures("little_memory")
@hypothesis.given(frame=st.binary(max_size=64), cut=st.integers(0, 200), flip=st.integers(0, 10**6))
@hypothesis.settings(
    max_examples=400, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
def test_fuzzed_frames_end_in_messages_or_in_an_error(frame: bytes, cut: int, flip: int) -> None:
    real = bytearray(marshal.dumps([(1, 2, b"payload", (3.5, "text"), None), (2,)], channel.FORMAT))
    real[flip % len(real)] ^= 1 + flip % 255
    for body in (frame, bytes(real)[:cut], bytes(real)):
        if len(body) > 4 and body[:1] in b"[(<>{" and int.from_bytes(body[1:5], "little") > 1_000_000:
            continue  # a list of a billion would only fill memory before it fails
        left, right = socket.socketpair()
        receiver = channel.Channel(right)
        left.send(len(body).to_bytes(4, "little") + body)
        try:
            received = receiver.receive()
            assert received is not None
            assert all(type(message) is tuple for message in received)
        except channel.FrameError:
            pass
        finally:
            left.close()
            receiver.close()


def test_no_number_stands_for_two_messages() -> None:
    names = Counter(value for name, value in vars(numbers).items() if name.isupper() and not name.startswith("STATUS"))
    assert [number for number, count in names.items() if count > 1] == []
