"""Transforms of torchvision, applied to columns of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from hocket._base import texts
from hocket.data import blocks, columns
from hocket.data.preprocessors import stateless
from hocket.data.tensors import to_torch


@final
class TorchVisionPreprocessor(stateless.StatelessPerColumn):
    """Call a transform of torchvision, or another function on tensors, with images.

    Args:
        columns: The columns, which hold arrays.
        transform: Takes a tensor and returns a tensor. If it raises TypeError, as ``ToTensor`` does, it is called again
            with a numpy array.
        output_columns: Names of the results. Default: the results replace the columns.
        batched: Whether to call the transform once with all images of a block, along the first axis, and not for each.

    Raises:
        TypeError: `transform` cannot be called.
        ValueError: No column is named, or `output_columns` has another length.

    Example:
        >>> import numpy as np
        >>> from hocket.data.preprocessors import TorchVisionPreprocessor
        >>> brighter = TorchVisionPreprocessor(["image"], transform=lambda image: image * 2)
        >>> brighter.transform_batch({"image": np.ones((1, 2, 2))})["image"].tolist()
        [[[2.0, 2.0], [2.0, 2.0]]]
    """

    def __init__(
        self,
        columns: Sequence[str],
        transform: Callable[[Any], object],
        output_columns: Sequence[str] | None = None,
        batched: bool = False,
    ) -> None:
        self.columns = columns
        self.torchvision_transform = transform
        self.output_columns = output_columns
        self.batched = batched
        self.__post_init__()

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if not callable(self.torchvision_transform):
            raise TypeError(
                f"transform must be a function on tensors, but received {self.torchvision_transform!r:.80}. Write "
                "transform=torchvision.transforms.Resize(224), for example."
            )

    def _list_arguments(self) -> dict[str, object]:
        return {
            "columns": self.columns,
            "transform": self.torchvision_transform,
            "output_columns": self.output_columns,
            "batched": self.batched,
        }

    def _list_shown(self) -> dict[str, object]:
        shown = self._list_arguments()
        if self.output_columns == self.columns:
            shown.pop("output_columns")
        if not self.batched:
            shown.pop("batched")
        return shown

    def _compute(self, block: blocks.Block) -> Mapping[str, object]:
        made: dict[str, object] = {}
        for column, output in self._list_pairs():
            images = columns.to_numpy(block.columns[column])
            if self.batched:
                made[output] = self._call(images)
            else:
                made[output] = [self._call(np.asarray(image)) for image in images]
        return made

    def _call(self, image: npt.NDArray[Any]) -> npt.NDArray[Any]:
        own = np.array(image)  # PyTorch warns about a tensor of a read-only array
        try:
            found = self.torchvision_transform(to_torch.load().as_tensor(own))
        except TypeError:
            found = self.torchvision_transform(own)
        if not hasattr(found, "__array__"):
            raise TypeError(
                f"transform must return a tensor or an array, but returned {texts.name_kind(found)}: {found!r:.80}. "
                "Add ToTensor() as its last part."
            )
        return np.asarray(found)
