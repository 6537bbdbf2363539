"""Imports Keras on JAX."""

from hocket.train.frameworks import keras_preloads

keras_preloads.load("jax")
