"""The functions for a training function with tf-keras. Importing this package imports TensorFlow."""

from hocket.train.frameworks.tf_keras.keras import ReportCheckpointCallback as ReportCheckpointCallback
