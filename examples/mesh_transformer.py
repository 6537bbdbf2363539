"""A transformer on a mesh of 4 virtual devices. Only the layout decides which parallelism it has.

As in Mesh TensorFlow (N. Shazeer et al., "Mesh-TensorFlow: Deep Learning for Supercomputers", 2018) each dim of each
parameter has a name, and a layout says which of these names the axes of the mesh cut. The code of the model and of its
training is the same for each layout, and so are the results. The model learns the text of the manual that comes with
Python, character by character.

    python examples/mesh_transformer.py
    python examples/mesh_transformer.py --layout tensor

    layout   cuts                                            parallelism
    one      nothing                                         a single device
    data     the batch                                       data parallel
    fsdp     the batch, and parameters along the same axis   fully sharded data parallel
    tensor   attention's heads, the hidden layer             tensor parallel
    2x2      the batch, and heads and hidden layer           both
"""

import argparse
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from pydoc_data import topics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from mesh_digits import Adam
from rich.progress import Progress

from hocket import mesh
from hocket.mesh import UNSHARDED, DVariable, Layout, LayoutMap, Mesh

BATCH_SIZE = 32
SIZES = {"characters": 96, "places": 64, "width": 64, "heads": 4, "size": 16, "hidden": 256}
"""The sizes of the parameters' dims, by name."""

BLOCK = {
    "scale_1": ("width",),
    "query": ("width", "heads", "size"),
    "key": ("width", "heads", "size"),
    "value": ("width", "heads", "size"),
    "out": ("heads", "size", "width"),
    "scale_2": ("width",),
    "up": ("width", "hidden"),
    "down": ("hidden", "width"),
}
REST = {
    "embedding": ("characters", "width"),
    "positions": ("places", "width"),
    "scale": ("width",),
    "scores": ("width", "characters"),
}
"""`BLOCK` has the parameters of a block, `REST` all others, each with the names of its dims."""

MODEL_PARALLEL = {"heads": "model", "hidden": "model"}
"""M. Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019:
each half of a block cuts one layer by columns and the next by rows, so it needs only one sum."""

LAYOUTS: dict[str, tuple[dict[str, int], dict[str, str]]] = {
    "one": ({"data": 1}, {}),
    "data": ({"data": 4}, {"batch": "data"}),
    "fsdp": ({"data": 4}, {"batch": "data", "width": "data"}),
    "tensor": ({"model": 4}, MODEL_PARALLEL),
    "2x2": ({"data": 2, "model": 2}, {"batch": "data", **MODEL_PARALLEL}),
}
"""For each layout the axes of the mesh, and for each cut dim the axis that cuts it."""


class Transformer:
    """A decoder that predicts the next character at each place.

    The names of values end with their dims: b rows of the batch, p and q places, w width, h heads, s size of a head,
    f hidden, c characters.
    """

    def __init__(self, grid: Mesh, cuts: Mapping[str, str], blocks: int) -> None:
        self.blocks = blocks
        self.dims = REST | {f"block_{number}/{name}": BLOCK[name] for number in range(blocks) for name in BLOCK}
        specs = {name: [cuts.get(dim, UNSHARDED) for dim in dims] for name, dims in self.dims.items()}
        self.rules = LayoutMap(grid, specs)
        self.rows = Layout([cuts.get("batch", UNSHARDED), UNSHARDED], grid)
        self.activations = Layout([*self.rows.axes, ()], grid)
        spread = mesh.distribute(self.draw_weights(), self.rules)
        self.weights = {name: DVariable(value, name=name) for name, value in spread.items()}

    def draw_weights(self) -> dict[str, Any]:
        """Return first weights. Scales are 1; the others are random, and smaller if an output sums more terms."""
        rng = np.random.default_rng(22)
        drawn = {}
        for name, dims in self.dims.items():
            shape = tuple([SIZES[dim] for dim in dims])
            terms = math.prod(shape[:-1]) if dims[-1] == "width" else SIZES["width"]
            drawn[name] = np.ones(shape) if len(dims) == 1 else rng.normal(0, terms**-0.5, shape)
        return {name: values.astype("float32") for name, values in drawn.items()}

    def compute_loss(self, rows: Any) -> Any:
        """Return the mean cross entropy of each character, given the characters before it."""
        w = {name: one.native for name, one in self.weights.items()}
        text_bp, next_bp = rows.native[:, :-1], rows.native[:, 1:]
        x_bpw = self.spread(w["embedding"][text_bp] + w["positions"])
        for number in range(self.blocks):
            block = {name: w[f"block_{number}/{name}"] for name in BLOCK}
            x_bpw = self.spread(x_bpw + attend(normalize(x_bpw, block["scale_1"]), block))
            hidden_bpf = jax.nn.gelu(normalize(x_bpw, block["scale_2"]) @ block["up"])
            x_bpw = self.spread(x_bpw + hidden_bpf @ block["down"])
        scores_bpc = jax.nn.log_softmax(normalize(x_bpw, w["scale"]) @ w["scores"])
        return -jnp.take_along_axis(scores_bpc, next_bp[..., None], axis=2).mean()

    def spread(self, x_bpw: Any) -> Any:
        """Cut a value between blocks as the batch is cut, so that parameters travel to it and not the reverse."""
        return mesh.copy_to_mesh(x_bpw, self.activations).native


def attend(x_bpw: Any, block: Mapping[str, Any]) -> Any:
    """Compute causal attention: each place attends to itself and the places before it, with several heads."""
    query_bphs, key_bphs, value_bphs = (
        jnp.einsum("bpw,whs->bphs", x_bpw, block[name]) for name in ("query", "key", "value")
    )
    scores_bhpq = jnp.einsum("bphs,bqhs->bhpq", query_bphs, key_bphs) / SIZES["size"] ** 0.5
    is_past_pq = np.tri(SIZES["places"], dtype=bool)
    shares_bhpq = jax.nn.softmax(jnp.where(is_past_pq, scores_bhpq, -jnp.inf))
    return jnp.einsum("bhpq,bqhs,hsw->bpw", shares_bhpq, value_bphs, block["out"])


def normalize(x_bpw: Any, scale_w: Any) -> Any:
    """Normalize as in B. Zhang and R. Sennrich, "Root Mean Square Layer Normalization", 2019."""
    return scale_w * x_bpw / ((x_bpw**2).mean(-1, keepdims=True) + 1e-6) ** 0.5


def load_text() -> Any:
    """Return the manual's topics as numbers: 0 to 94 for ASCII's printable characters, 95 for a control character such
    as a line end. Characters outside ASCII become question marks."""
    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype("int32")
    return np.where(codes < 32, 95, codes - 32)


def train(layout: str, blocks: int, steps: int, progress: Progress) -> tuple[Transformer, list[float]]:
    """Return the model, and the loss of each step."""
    axes, cuts = LAYOUTS[layout]
    model = Transformer(mesh.create_mesh(axes), cuts, blocks)
    weights = list(model.weights.values())
    optimizer = Adam(weights)

    @mesh.function(variables=[*weights, *optimizer.variables], donate=True)
    def take_step(rows: Any) -> Any:
        loss, gradients = mesh.value_and_gradients(model.compute_loss, weights, rows)
        optimizer.apply_gradients(list(zip(gradients, weights, strict=True)))
        return loss

    text, rng = load_text(), np.random.default_rng(22)
    windows = np.arange(SIZES["places"] + 1)
    losses = []
    task = progress.add_task(layout, total=steps)
    for _ in range(steps):
        starts = rng.integers(len(text) - len(windows), size=(BATCH_SIZE, 1))
        losses.append(float(take_step(mesh.copy_to_mesh(text[starts + windows], model.rows))))
        progress.update(task, advance=1, description=f"{layout}: loss {losses[-1]:.3f}")
    return model, losses


def draw(curves: Mapping[str, list[float]], path: Path) -> None:
    """Draw the losses. Each line is thinner than the line below it, because they cover each other."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for number, (layout, losses) in enumerate(curves.items()):
        axes.plot(losses, label=layout, linewidth=1 + 2 * (len(curves) - 1 - number))
    axes.set_xlabel("step")
    axes.set_title("cross entropy of the next character")
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Train with each layout, compare the weights, and draw the losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", nargs="+", choices=LAYOUTS, default=list(LAYOUTS), help="default: all, compared")
    parser.add_argument("--blocks", type=int, default=2, help="how deep the transformer is")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=Path("mesh_transformer"), help="for the picture")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    arguments = parser.parse_args()
    mesh.create_mesh({"all": 4})  # the first mesh decides how many virtual devices there are
    curves: dict[str, list[float]] = {}
    first: dict[str, Any] = {}
    for layout in arguments.layout:
        with Progress(disable=arguments.quiet or not sys.stdout.isatty(), transient=True) as progress:
            model, curves[layout] = train(layout, arguments.blocks, arguments.steps, progress)
        whole = {name: one.gather() for name, one in model.weights.items()}
        first = first or whole
        apart = max(float(abs(whole[name] - first[name]).max()) for name in whole)
        told = mesh.explain(whole, model.rules, batch_dims=[name for axes in model.rows.axes for name in axes])
        print(
            f"{layout}: loss {curves[layout][0]:.3f} to {curves[layout][-1]:.3f}; a device has {told.local_bytes:,} B "
            f"of parameters; weights at most {apart:.1e} from those of {arguments.layout[0]}"
        )
    arguments.folder.mkdir(parents=True, exist_ok=True)
    draw(curves, arguments.folder / "curves.png")


if __name__ == "__main__":
    main()
