"""JAX's arrays as values, and large `bytes`: their memory travels beside the pickle."""

from __future__ import annotations

import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hocket
from hocket.engine import pickling, values

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("session")]

DTYPES = ["float32", "float16", "bfloat16", "complex64", "bool", "int8", "int32", "uint8", "uint32", "float8_e4m3fn"]


def as_bits(array: Any) -> bytes:
    found: bytes = np.ascontiguousarray(array).tobytes()
    return found


def test_any_array_is_the_same() -> None:
    source = random.Random(0)
    given = []
    for _ in range(200):
        shape = [source.choice([0, 1, 3, 70, 200]) for _ in range(source.randrange(3))] + [source.choice([1, 5, 130])]
        made = (np.random.default_rng(0).random(shape) * 100).astype(jnp.dtype(source.choice(DTYPES)))
        given.append(jnp.asarray(made).T if source.random() < 0.5 else jnp.asarray(made))
    for found, one in zip(hocket.get(hocket.put(given)), given, strict=True):
        assert type(found) is type(one)
        assert (found.dtype, found.shape, found.weak_type) == (one.dtype, one.shape, one.weak_type)
        assert as_bits(found) == as_bits(one)


def test_weak_types_and_scalars() -> None:
    given = [jnp.asarray(1.5), jnp.float32(2), jnp.asarray(3), jax.numpy.ones(()), jnp.zeros((70000,)) * 2.0]
    found = hocket.get(hocket.put(given))
    assert [(one.weak_type, one.dtype, float(one.sum())) for one in found] == [
        (one.weak_type, one.dtype, float(one.sum())) for one in given
    ]


def test_an_array_is_the_readers_own() -> None:
    """JAX may compute in the memory of an array that was donated."""
    ref = hocket.put(jnp.zeros(100_000))
    first, second = hocket.get(ref), hocket.get(ref)
    grown = jax.jit(lambda x: x + 1, donate_argnums=0)(first)
    assert bool(grown.all())
    assert not second.any()
    assert not hocket.get(ref).any()


def test_arrays_as_arguments_and_results() -> None:
    @hocket.remote
    def step(weights: Any, rows: Any) -> Any:
        return jax.grad(lambda w: ((rows @ w) ** 2).mean())(weights)

    weights, rows = jnp.linspace(0, 1, 300 * 200).reshape(300, 200), jnp.ones((50, 300))
    expected = jax.grad(lambda w: ((rows @ w) ** 2).mean())(weights)
    np.testing.assert_allclose(hocket.get(step.remote(weights, rows)), expected, rtol=1e-5)


def test_a_deleted_array_is_named() -> None:
    array = jnp.zeros(10)
    array.delete()
    with pytest.raises(hocket.exceptions.SerializationError, match="deleted"):
        hocket.put({"weights": array})


def test_the_memory_is_not_in_the_pickle() -> None:
    """The proof that the tests above see arrays travel beside the pickle."""
    encoded = values.encode([jnp.zeros((500, 500)), jnp.zeros((500, 500), jnp.bfloat16)])
    assert [buffer.nbytes for buffer in encoded.buffers] == [1_000_000, 500_000]
    assert len(encoded.data) < 2000


BIG = random.Random(0).randbytes(1 << 20)


class Holder:
    """An object of the program's own."""

    def __init__(self, data: bytes) -> None:
        self.data = data


@pytest.mark.parametrize(
    "value",
    [
        *(BIG, (BIG, 1), [1, BIG, b"x", BIG], {"a": BIG, "b": bytearray(BIG), "c": BIG[:70_000], "d": "s" * 500_000}),
        (b"\x95" + (5).to_bytes(8, "little") + BIG, b"\x95" + (1 << 40).to_bytes(8, "little") + BIG),
        *(["x" * 400_000, BIG, 1 << 3_000_000], [list(range(200_000)), BIG, bytearray()], bytearray(BIG)),
        [BIG[:-1] + b"B" + (1 << 20).to_bytes(4, "little"), BIG],
    ],
)
def test_large_bytes_are_the_same(value: Any) -> None:
    for found in (hocket.get(hocket.put(value)), hocket.get(hocket.remote(lambda given: given).remote(value))):
        assert type(found) is type(value)
        assert found == value


def test_large_bytes_are_one_object() -> None:
    found: dict[str, Any] = hocket.get(hocket.put({"a": BIG, "b": BIG, "held": Holder(BIG)}))
    assert found["a"] is found["b"] is found["held"].data


def test_large_bytes_are_beside_the_pickle() -> None:
    """The proof that they are not copied into it."""
    array = np.ones(100_000)
    value = {"first": array, "held": Holder(BIG), "second": bytearray(BIG), "third": array + 1}
    encoded = values.encode(value)
    assert [buffer.nbytes for buffer in encoded.buffers] == [800_000, 1 << 20, 1 << 20, 800_000]
    assert encoded.buffers[1].obj is BIG
    assert values.encode(BIG).buffers[0].obj is BIG


def test_all_can_stay_in_the_pickle() -> None:
    value = [np.arange(100_000.0), BIG, bytearray(BIG)]
    encoded = values.encode_whole(value)
    assert not encoded.buffers
    found = values.decode(encoded.data)
    assert (found[0] == value[0]).all()
    assert found[1:] == value[1:]


def test_a_stream_keeps_data_that_has_no_header() -> None:
    buffers: list[memoryview] = []
    stream = pickling.PickleStream(buffers, 64)
    parts = [b"B" + (99).to_bytes(4, "little"), b"y" * 100, b"", b"z" * 70]
    for part in parts:
        stream.write(part)
    assert stream.getvalue() == b"".join(parts)
    assert stream.size == len(stream.getvalue())
    assert not buffers
