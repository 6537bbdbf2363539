"""Imports Keras on TensorFlow."""

from hocket.train.frameworks import keras_preloads

keras_preloads.load("tensorflow")
