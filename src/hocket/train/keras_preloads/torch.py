"""Imports Keras on PyTorch."""

from hocket.train import keras_preloads

keras_preloads.load("torch")
