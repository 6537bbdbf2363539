"""One folder a framework: torch, jax, keras (Keras 3 on each of its backends) and tf_keras (TensorFlow's own strategies). Importing one imports the framework.

Users import `hocket.train.torch`, `hocket.train.jax`, `hocket.train.keras` and `hocket.train.tensorflow`, which have
the public names. What several need is here: `weights` saves arrays by name, `report_callback` is Keras's callback in
both versions, `tf_config` and `keras_process` set a process up before its framework is imported.
"""
