"""TensorFlow's guide "Distributed training with Core APIs and DTensor" (2022; its Japanese edition): a perceptron,
data-parallel on a mesh of virtual CPUs.

Meshes and layouts are not built in Hocket yet. What runs today: TensorFlow's own DTensor, unchanged, in one rank; and
the same network with the same batches on several ranks, by `tf.distribute` or by PyTorch's DistributedDataParallel. All
reach the same losses. The pictures are scikit-learn's digits in MNIST's form.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.reference import programs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.about_local("programs of their own"),
]

BEGIN = (
    """
import sys
import tempfile

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

import hocket
from hocket import train
from hocket.train.tensorflow import TensorflowTrainer

STEPS, BATCH_SIZE = 4, 128
"""
    + programs.DIGITS
    + """

def batches():
    images, labels = load_mnist()
    rows = tf.data.Dataset.from_tensor_slices((images.reshape(-1, 784).astype(np.float32) / 255, labels.astype(np.int64)))
    return rows.batch(BATCH_SIZE, drop_remainder=True).take(STEPS)


def cross_entropy_loss(y_pred, y):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=y_pred))


def accuracy(y_pred, y):
    return tf.reduce_mean(tf.cast(tf.equal(y, tf.argmax(y_pred, axis=1)), tf.float32))


class MLP(tf.Module):
    def __init__(self, layers):
        self.layers = layers

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
"""
)

ON_MESHES = """

class DenseLayer(tf.Module):
    def __init__(self, in_dim, out_dim, weight_layout, activation=tf.identity):
        super().__init__()
        self.activation = activation
        uniform_initializer = tf.function(tf.random.stateless_uniform)
        xavier_lim = tf.sqrt(6.0) / tf.sqrt(tf.cast(in_dim + out_dim, tf.float32))
        self.w = dtensor.DVariable(
            dtensor.call_with_layout(
                uniform_initializer, weight_layout, shape=(in_dim, out_dim), seed=(22, 23), minval=-xavier_lim, maxval=xavier_lim
            )
        )
        self.b = dtensor.DVariable(dtensor.call_with_layout(tf.zeros, weight_layout.delete([0]), shape=[out_dim]))

    def __call__(self, x):
        return self.activation(tf.add(tf.matmul(x, self.w), self.b))


class Adam(tf.Module):
    def __init__(self, model_vars, learning_rate=1e-3, beta_1=0.9, beta_2=0.999, ep=1e-7):
        self.model_vars = model_vars
        self.beta_1, self.beta_2, self.learning_rate, self.ep = beta_1, beta_2, learning_rate, ep
        self.t = 1.0
        self.v_dvar, self.s_dvar = [], []
        for var in model_vars:
            self.v_dvar.append(dtensor.DVariable(dtensor.call_with_layout(tf.zeros, var.layout, shape=var.shape)))
            self.s_dvar.append(dtensor.DVariable(dtensor.call_with_layout(tf.zeros, var.layout, shape=var.shape)))

    def apply_gradients(self, grads):
        for i, (d_var, var) in enumerate(zip(grads, self.model_vars)):
            self.v_dvar[i].assign(self.beta_1 * self.v_dvar[i] + (1 - self.beta_1) * d_var)
            self.s_dvar[i].assign(self.beta_2 * self.s_dvar[i] + (1 - self.beta_2) * tf.square(d_var))
            v_dvar_bc = self.v_dvar[i] / (1 - (self.beta_1**self.t))
            s_dvar_bc = self.s_dvar[i] / (1 - (self.beta_2**self.t))
            var.assign_sub(self.learning_rate * (v_dvar_bc / (tf.sqrt(s_dvar_bc) + self.ep)))
        self.t += 1.0


class AdamOnSeveral(Adam):
    # Uses what it has computed, and not what it reads after it has assigned it.
    def apply_gradients(self, grads):
        for i, (d_var, var) in enumerate(zip(grads, self.model_vars)):
            v = self.beta_1 * self.v_dvar[i] + (1 - self.beta_1) * d_var
            s = self.beta_2 * self.s_dvar[i] + (1 - self.beta_2) * tf.square(d_var)
            self.v_dvar[i].assign(v)
            self.s_dvar[i].assign(s)
            v_dvar_bc = v / (1 - (self.beta_1**self.t))
            s_dvar_bc = s / (1 - (self.beta_2**self.t))
            var.assign_sub(self.learning_rate * (v_dvar_bc / (tf.sqrt(s_dvar_bc) + self.ep)))
        self.t += 1.0


def configure_virtual_cpus(ncpu):
    (device,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * ncpu)


def repack_local_tensor(x, layout):
    x = tf.convert_to_tensor(x)
    sharded_dims = []
    queue = [x]
    for axis, dim in enumerate(layout.sharding_specs):
        if dim == dtensor.UNSHARDED:
            continue
        num_splits = layout.shape[axis]
        queue = tf.nest.map_structure(lambda x: tf.split(x, num_splits, axis=axis), queue)
        sharded_dims.append(dim)
    components = []
    for locations in layout.mesh.local_device_locations():
        t = queue[0]
        for dim in sharded_dims:
            t = t[locations[dim]]
        components.append(t)
    return dtensor.pack(components, layout)


def repack_batch(x, y, mesh):
    x = repack_local_tensor(x, layout=dtensor.Layout(["batch", dtensor.UNSHARDED], mesh))
    y = repack_local_tensor(y, layout=dtensor.Layout(["batch"], mesh))
    return x, y


@tf.function
def train_step(model, x_batch, y_batch, loss, metric, optimizer):
    with tf.GradientTape() as tape:
        y_pred = model(x_batch)
        batch_loss = loss(y_pred, y_batch)
    grads = tape.gradient(batch_loss, model.trainable_variables)
    optimizer.apply_gradients(grads)
    return batch_loss, metric(y_pred, y_batch)


def train_on(size, make_optimizer):
    mesh = dtensor.create_mesh([("batch", size)], devices=[f"CPU:{i}" for i in range(size)])
    weight_layout = dtensor.Layout([dtensor.UNSHARDED, dtensor.UNSHARDED], mesh)
    mlp_model = MLP(
        [
            DenseLayer(784, 700, weight_layout, activation=tf.nn.relu),
            DenseLayer(700, 10, weight_layout, activation=tf.nn.relu),
            DenseLayer(10, 10, weight_layout),
        ]
    )
    optimizer = make_optimizer(mlp_model.trainable_variables)
    losses = []
    for x_batch, y_batch in batches():
        x_batch, y_batch = repack_batch(x_batch, y_batch, mesh)
        batch_loss, batch_acc = train_step(mlp_model, x_batch, y_batch, cross_entropy_loss, accuracy, optimizer)
        losses.append(float(batch_loss))
    return losses


def train_func(config):
    configure_virtual_cpus(2)
    return [train_on(1, Adam), train_on(2, AdamOnSeveral)]
"""

ON_RANKS = """

class DenseLayer(tf.Module):
    def __init__(self, in_dim, out_dim, activation=tf.identity):
        super().__init__()
        self.activation = activation
        xavier_lim = tf.sqrt(6.0) / tf.sqrt(tf.cast(in_dim + out_dim, tf.float32))
        self.w = tf.Variable(
            tf.random.stateless_uniform(shape=(in_dim, out_dim), seed=(22, 23), minval=-xavier_lim, maxval=xavier_lim)
        )
        self.b = tf.Variable(tf.zeros([out_dim]))

    def __call__(self, x):
        return self.activation(tf.add(tf.matmul(x, self.w), self.b))


class Adam(tf.Module):
    def __init__(self, model_vars, learning_rate=1e-3, beta_1=0.9, beta_2=0.999, ep=1e-7):
        self.model_vars = model_vars
        self.beta_1, self.beta_2, self.learning_rate, self.ep = beta_1, beta_2, learning_rate, ep
        self.t = 1.0
        self.v_var = [tf.Variable(tf.zeros(var.shape), trainable=False) for var in model_vars]
        self.s_var = [tf.Variable(tf.zeros(var.shape), trainable=False) for var in model_vars]

    def apply_gradients(self, grads):
        for i, (d_var, var) in enumerate(zip(grads, self.model_vars)):
            self.v_var[i].assign(self.beta_1 * self.v_var[i] + (1 - self.beta_1) * d_var)
            self.s_var[i].assign(self.beta_2 * self.s_var[i] + (1 - self.beta_2) * tf.square(d_var))
            v_var_bc = self.v_var[i] / (1 - (self.beta_1**self.t))
            s_var_bc = self.s_var[i] / (1 - (self.beta_2**self.t))
            var.assign_sub(self.learning_rate * (v_var_bc / (tf.sqrt(s_var_bc) + self.ep)))
        self.t += 1.0


def train_func(config):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        mlp_model = MLP(
            [DenseLayer(784, 700, activation=tf.nn.relu), DenseLayer(700, 10, activation=tf.nn.relu), DenseLayer(10, 10)]
        )
        optimizer = Adam(mlp_model.trainable_variables)

    @tf.function
    def train_step(x_batch, y_batch):
        def replica(x, y):
            with tf.GradientTape() as tape:
                loss = cross_entropy_loss(mlp_model(x), y)
            context = tf.distribute.get_replica_context()
            grads = context.all_reduce(tf.distribute.ReduceOp.MEAN, tape.gradient(loss, mlp_model.trainable_variables))
            optimizer.apply_gradients(grads)
            return loss

        return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(replica, args=(x_batch, y_batch)), axis=None)

    return [float(train_step(x, y)) for x, y in strategy.experimental_distribute_dataset(batches())]
"""

BY_TORCH = """
import torch

from hocket.train.torch import TorchTrainer, prepare_model


class Adam:
    def __init__(self, model_vars, learning_rate=1e-3, beta_1=0.9, beta_2=0.999, ep=1e-7):
        self.model_vars = model_vars
        self.beta_1, self.beta_2, self.learning_rate, self.ep = beta_1, beta_2, learning_rate, ep
        self.t = 1.0  # as in the guide, whose graph has recorded the first step's number
        self.v_var = [torch.zeros_like(var) for var in model_vars]
        self.s_var = [torch.zeros_like(var) for var in model_vars]

    @torch.no_grad()
    def apply_gradients(self, grads):
        for v, s, d_var, var in zip(self.v_var, self.s_var, grads, self.model_vars):
            v.copy_(self.beta_1 * v + (1 - self.beta_1) * d_var)
            s.copy_(self.beta_2 * s + (1 - self.beta_2) * d_var**2)
            v_bc, s_bc = v / (1 - self.beta_1**self.t), s / (1 - self.beta_2**self.t)
            var -= self.learning_rate * v_bc / (s_bc.sqrt() + self.ep)


def train_func(config):
    layers = [torch.nn.Linear(784, 700), torch.nn.ReLU(), torch.nn.Linear(700, 10), torch.nn.ReLU(), torch.nn.Linear(10, 10)]
    for layer in layers[::2]:
        limit = (6.0 / (layer.in_features + layer.out_features)) ** 0.5
        shape = (layer.in_features, layer.out_features)
        weight = tf.random.stateless_uniform(shape=shape, seed=(22, 23), minval=-limit, maxval=limit)
        layer.weight.data = torch.tensor(weight.numpy().T)
        layer.bias.data.zero_()
    model = prepare_model(torch.nn.Sequential(*layers))
    optimizer = Adam(list(model.parameters()))
    rank, size = train.get_context().get_world_rank(), train.get_context().get_world_size()
    losses = []
    for x_batch, y_batch in batches():
        x, y = (torch.tensor(values.numpy()[rank::size]) for values in (x_batch, y_batch))
        loss = torch.nn.functional.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        optimizer.apply_gradients([variable.grad for variable in model.parameters()])
        total = loss.detach().clone()
        torch.distributed.all_reduce(total)
        losses.append(total.item() / size)
    return losses
"""

END = """

if __name__ == "__main__":
    trainer = TRAINER(
        train_func,
        train_loop_config={},
        scaling_config=train.ScalingConfig(num_workers=WORKERS),
        run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
    )
    print(trainer.fit().return_value)
"""


def run(program: str, folder: Path, *, workers: int, trainer: str = "TensorflowTrainer") -> Any:
    text = BEGIN + program + END.replace("WORKERS", str(workers)).replace("TRAINER", trainer)
    return ast.literal_eval(programs.read_result(programs.run(text, folder))[-1])


@pytest.fixture(scope="module")
def on_meshes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The losses on a mesh of one virtual CPU, and on one of two."""
    return run(ON_MESHES, tmp_path_factory.mktemp("meshes"), workers=1)


def test_tensorflow_s_meshes_run_in_one_rank(on_meshes: Any) -> None:
    on_one, on_two = on_meshes
    assert len(on_one) == 4
    assert on_one[-1] < on_one[0]
    assert on_two == pytest.approx(on_one, rel=1e-4)


def test_ranks_of_tensorflow_reach_the_same_losses(on_meshes: Any, tmp_path: Path) -> None:
    assert run(ON_RANKS, tmp_path, workers=2) == pytest.approx(on_meshes[0], rel=1e-4)


def test_ranks_of_pytorch_reach_the_same_losses(on_meshes: Any, tmp_path: Path) -> None:
    assert run(BY_TORCH, tmp_path, workers=2, trainer="TorchTrainer") == pytest.approx(on_meshes[0], rel=1e-4)
