"""Imports Keras on TensorFlow."""

from hocket.train import keras_preloads

keras_preloads.load("tensorflow")
