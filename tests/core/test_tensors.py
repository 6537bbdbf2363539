"""PyTorch's tensors as values: their memory travels beside the pickle, and each view finds its storage again."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import pytest
import torch

import hocket
from hocket._base.internals import torch as torch_internals
from hocket.engine import pickling, values

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("session")]

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]


def draw(source: random.Random) -> torch.Tensor:
    """Return a tensor of a random type, size and layout; some are large enough to travel beside the pickle."""
    dtype = source.choice(DTYPES)
    shape = [source.choice([0, 1, 3, 70, 200]) for _ in range(source.randrange(3))] + [source.choice([1, 5, 130])]
    made = (torch.rand(shape, dtype=torch.float64) * 100).to(dtype)
    if source.random() < 0.5 and made.ndim > 1:
        made = made.transpose(0, -1)
    if source.random() < 0.5 and made.shape[0] > 2:
        made = made[1::2]
    if source.random() < 0.3 and (made.is_floating_point() or made.is_complex()):
        made = torch.nn.Parameter(made.detach()) if source.random() < 0.5 else made.detach().requires_grad_()
    return made


def as_bits(tensor: torch.Tensor) -> bytes:
    found: bytes = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return found


def check_equal(found: torch.Tensor, given: torch.Tensor) -> None:
    assert type(found) is type(given)
    assert (found.dtype, found.shape, found.stride(), found.requires_grad) == (
        *(given.dtype, given.shape, given.stride(), given.requires_grad),
    )
    assert as_bits(found) == as_bits(given)


def test_any_tensor_is_the_same() -> None:
    source = random.Random(0)
    for _ in range(10):
        given = [draw(source) for _ in range(50)]
        for found, one in zip(hocket.get(hocket.put(given)), given, strict=True):
            check_equal(found, one)


def test_views_share_their_storage() -> None:
    whole = torch.arange(100_000.0)
    given = {"whole": whole, "odd": whole[1::2], "few": whole[10:20], "other": whole.clone()}
    found = hocket.get(hocket.put(given))
    found["whole"][11] = -1
    assert [found["odd"][5].item(), found["few"][1].item(), found["other"][11].item()] == [-1, -1, 11]
    assert whole[11] == 11, "the reader has a memory of its own"
    assert hocket.get(hocket.put(given))["whole"][11] == 11


def test_readers_do_not_see_what_others_write() -> None:
    ref = hocket.put(torch.zeros(100_000))
    first, second = hocket.get(ref), hocket.get(ref)
    first += 1
    assert not second.any()
    assert not hocket.get(ref).any()


def test_models_and_their_states() -> None:
    @hocket.remote
    def train(model: Any, rows: torch.Tensor) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(rows).sum().backward()
        optimizer.step()
        return model.state_dict()

    torch.manual_seed(0)
    model, rows = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.BatchNorm1d(200)), torch.rand(40, 300)
    found = hocket.get(train.remote(model, rows))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(rows).sum().backward()
    optimizer.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(found[name], value)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta", "ignore:The PyTorch API of nested tensors")
def test_other_layouts() -> None:
    eye = torch.eye(300)
    given = [eye.to_sparse(), eye.to_sparse_csr(), torch.nested.nested_tensor([eye[0], eye[1, :5]]), torch.empty(0)]
    found = hocket.get(hocket.put(given))
    assert [one.layout for one in found] == [one.layout for one in given]
    for one, other in zip(found[:2], given[:2], strict=True):
        assert torch.equal(one.to_dense(), other.to_dense())
    assert torch.equal(found[2].unbind()[1], eye[1, :5])
    half = eye.conj()
    assert hocket.get(hocket.put(torch.complex(eye, eye).conj())).is_conj()
    assert torch.equal(hocket.get(hocket.put(half)), half)
    meta = hocket.get(hocket.put(torch.empty(300, 300, device="meta")))
    assert (meta.device.type, meta.shape) == ("meta", (300, 300))


def test_small_tensors_can_grow() -> None:
    found = hocket.get(hocket.put(torch.arange(3)))
    assert found.resize_(5).shape == (5,)


def test_the_memory_is_not_in_the_pickle() -> None:
    """The proof that the tests above see tensors travel as arrays do."""
    tensor = torch.rand(1000, 1000)
    encoded = values.encode({"tensor": tensor, "view": tensor[5:]})
    assert len(encoded.data) < 2000
    assert [buffer.nbytes for buffer in encoded.buffers] == [4_000_000]
    assert np.shares_memory(np.asarray(encoded.buffers[0]), tensor.numpy().reshape(-1).view(np.uint8))
    stream = io.BytesIO()
    pickling.load_pickler()(stream, pickling.PROTOCOL).dump(tensor)
    check_equal(values.decode(stream.getvalue()), tensor)


def test_other_classes_of_that_name_are_no_tensors() -> None:
    class Tensor:
        value = 4

    assert hocket.get(hocket.put(Tensor())).value == 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU: the tensor arrives")
def test_a_tensor_of_a_gpu_is_refused_in_one_sentence_where_there_is_none() -> None:
    class OnGpu:
        def __reduce__(self) -> tuple[Any, ...]:
            return torch_internals.rebuild_on_gpu, (torch.zeros(100_000).untyped_storage(), 0)

    with pytest.raises(
        hocket.exceptions.SerializationError,
        match=r"The value has a tensor on a GPU, .* Send tensor.cpu\(\), or request a GPU",
    ):
        hocket.get(hocket.put(OnGpu()))
