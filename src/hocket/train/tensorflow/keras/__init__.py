"""What a training function with tf-keras calls. Importing it imports TensorFlow."""

from hocket.train.frameworks.tf_keras.keras import ReportCheckpointCallback as ReportCheckpointCallback
