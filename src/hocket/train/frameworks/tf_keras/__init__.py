"""TensorFlow's own strategies in the ranks, and tf-keras.

`hocket.train.tensorflow` has the public names, and lists the modules.
"""
