"""One folder a framework: torch, jax, keras (Keras 3 on each of its backends) and tf_keras (TensorFlow's own
strategies). Importing one imports the framework.

Users import `hocket.train.torch`, `hocket.train.jax`, `hocket.train.keras` and `hocket.train.tensorflow`, which have
the public names. `contract` says what training needs of a framework; each folder's ``framework`` has one. What stands
on it is here, once for all: `rank_states` is a strategy's life in a rank, `weights` saves arrays by name, `global_mean`
is over all ranks' rows. `report_callback` is Keras's callback in both versions, `tf_config` sets a process up
before its framework is imported.
"""
