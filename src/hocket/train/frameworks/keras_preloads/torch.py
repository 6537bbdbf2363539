"""Imports Keras on PyTorch."""

from hocket.train.frameworks import keras_preloads

keras_preloads.load("torch")
