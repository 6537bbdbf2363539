"""Imports Keras on JAX."""

from hocket.train import keras_preloads

keras_preloads.load("jax")
