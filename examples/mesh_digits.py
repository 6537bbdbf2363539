"""Handwritten digits on a mesh of 8 virtual devices, from the ground up: dense layers of mesh variables, and Adam.

The model is a perceptron 784-700-500-10, and its layers say how their weights are spread. Everything else follows from
that: each batch is cut along the axis "batch", every device computes its part, and XLA adds up the sums. With the
default mesh each device has all weights (data parallel). With another mesh the same code is tensor parallel as well:

    python examples/mesh_digits.py
    python examples/mesh_digits.py --mesh batch=2 model=4
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from sklearn import datasets

from hocket import mesh
from hocket.mesh import UNSHARDED, DVariable, Layout, LayoutMap, Mesh

BATCH_SIZE = 128
SIZES = (784, 700, 500, 10)
SPECS = (([UNSHARDED, "model"]), (["model", UNSHARDED]), ([UNSHARDED, UNSHARDED]))
"""How each layer's kernel is cut: the first by columns and the second by rows, so no gather is needed between them."""


class Dense:
    """A dense layer. The bias is spread as the columns of the weights are."""

    def __init__(self, number: int, layout: Layout) -> None:
        shape = (SIZES[number], SIZES[number + 1])
        limit = (6 / sum(shape)) ** 0.5
        key = jax.random.key(22 + number)
        self.kernel = DVariable(
            mesh.call_with_layout(jax.random.uniform, layout, key, shape, minval=-limit, maxval=limit),
            name=f"layer_{number}/kernel",
        )
        self.bias = DVariable(
            mesh.call_with_layout(jnp.zeros, layout.delete([0]), shape[1]), name=f"layer_{number}/bias"
        )

    def __call__(self, x: Any) -> Any:
        return x @ self.kernel + self.bias


class Perceptron:
    """Dense layers with rectifiers between them."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self.layers = [Dense(number, layout) for number, layout in enumerate(layouts)]
        self.variables = [one for layer in self.layers for one in (layer.kernel, layer.bias)]

    def __call__(self, x: Any) -> Any:
        for layer in self.layers[:-1]:
            x = layer(x).clip(0)
        return self.layers[-1](x)

    def compute_loss(self, x: Any, y: Any) -> Any:
        """Return the cross entropy."""
        scores = jax.nn.log_softmax(self(x).native)
        return -jnp.take_along_axis(scores, y.native[:, None], axis=1).mean()


class Adam:
    """The optimizer of D. Kingma and J. Ba, "Adam: A Method for Stochastic Optimization", 2015. Its averages are spread
    as their variables are."""

    def __init__(self, variables: Sequence[DVariable], rate: float = 1e-3) -> None:
        self.rate, self.beta_1, self.beta_2, self.epsilon = rate, 0.9, 0.999, 1e-7
        self.first, self.second = (
            [DVariable(mesh.call_with_layout(jnp.zeros, one.layout, one.shape)) for one in variables] for _ in range(2)
        )
        self.count = DVariable(np.float32(0), Layout([], variables[0].layout.mesh))
        self.variables = [*self.first, *self.second, self.count]

    def apply_gradients(self, pairs: Sequence[tuple[Any, DVariable]]) -> None:
        """Take a step."""
        self.count.assign_add(1)
        scale_1, scale_2 = (1 - beta**self.count.value for beta in (self.beta_1, self.beta_2))
        for (gradient, variable), first, second in zip(pairs, self.first, self.second, strict=True):
            first.assign(self.beta_1 * first + (1 - self.beta_1) * gradient)
            second.assign(self.beta_2 * second + (1 - self.beta_2) * gradient * gradient)
            variable.assign_sub(self.rate * (first / scale_1) / ((second / scale_2) ** 0.5 + self.epsilon))


def load_digits() -> tuple[Any, Any]:
    """Return 1,797 real digits of 8 x 8 pixels, enlarged to the 28 x 28 of the reference, and their labels."""
    digits = datasets.load_digits()
    larger = np.kron(digits.images / 16, np.ones((3, 3)))
    images = np.pad(larger, ((0, 0), (2, 2), (2, 2))).reshape(-1, 784)
    order = np.random.default_rng(22).permutation(len(images))
    return images[order].astype("float32"), digits.target[order].astype("int32")


def batch(images: Any, labels: Any, grid: Mesh) -> Iterator[Any]:
    """Return batches whose rows are cut along the axis "batch"."""
    layouts = (Layout(["batch", UNSHARDED], grid), Layout(["batch"], grid))
    rows = zip(images, labels, strict=True)
    return iter(mesh.DTensorDataset(rows, mesh=grid, layouts=layouts, global_batch_size=BATCH_SIZE))


def train(grid: Mesh, epochs: int) -> tuple[Perceptron, list[list[float]]]:
    """Return the model, and for each epoch loss and accuracy in training, then in testing."""
    axes = grid.dim_names
    specs = [[axis if axis in axes else UNSHARDED for axis in spec] for spec in SPECS]
    model = Perceptron([Layout(spec, grid) for spec in specs])
    optimizer = Adam(model.variables)
    images, labels = load_digits()

    def measure(x: Any, y: Any) -> Any:
        return (model(x).native.argmax(1) == y.native).mean()

    @mesh.function(variables=[*model.variables, *optimizer.variables])
    def take_step(x: Any, y: Any) -> tuple[Any, Any]:
        loss, gradients = mesh.value_and_gradients(model.compute_loss, model.variables, x, y)
        accuracy = measure(x, y)
        optimizer.apply_gradients(list(zip(gradients, model.variables, strict=True)))
        return loss, accuracy

    @mesh.function(variables=model.variables)
    def test(x: Any, y: Any) -> tuple[Any, Any]:
        return model.compute_loss(x, y), measure(x, y)

    curves = []
    for epoch in range(epochs):
        trained = np.mean(
            [[float(n) for n in take_step(x, y)] for x, y in batch(images[:1408], labels[:1408], grid)], 0
        )
        tested = np.mean([[float(n) for n in test(x, y)] for x, y in batch(images[1408:], labels[1408:], grid)], 0)
        curves.append([*trained, *tested])
        print(
            f"epoch {epoch}: loss {trained[0]:.3f}, accuracy {trained[1]:.3f}; "
            f"in testing {tested[0]:.3f}, {tested[1]:.3f}"
        )
    return model, curves


def draw(curves: list[list[float]], path: Path) -> None:
    """Draw loss and accuracy."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    for number, (axes, name) in enumerate(zip(figure.subplots(1, 2), ("cross entropy", "accuracy"), strict=True)):
        axes.plot([one[number] for one in curves], label="training")
        axes.plot([one[number + 2] for one in curves], label="testing")
        axes.set_title(name)
        axes.set_xlabel("epoch")
        axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Train, draw, save, and load onto one device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mesh", nargs="+", default=["batch=8"], metavar="AXIS=SIZE", help="the mesh's axes")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("mesh_digits"), help="for the picture and the checkpoint")
    arguments = parser.parse_args()
    sizes = [pair.split("=") for pair in arguments.mesh]
    grid = mesh.create_mesh([(axis, int(size)) for axis, size in sizes])
    model, curves = train(grid, arguments.epochs)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    draw(curves, arguments.folder / "curves.png")
    weights = {one.name: one.value for one in model.variables}
    saved = mesh.save(weights, arguments.folder / "weights")
    one = mesh.create_mesh({"batch": 1})
    loaded = mesh.load(saved, LayoutMap(one))
    same = all(np.array_equal(loaded[name].gather(), weights[name].gather()) for name in weights)
    print(f"weights of {grid.describe()} on one device: {'bit for bit the same' if same else 'OTHERS'}")


if __name__ == "__main__":
    main()
