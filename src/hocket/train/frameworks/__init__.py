"""Support of training frameworks: a folder each for torch, jax, keras (Keras 3 on every backend) and tf_keras
(TensorFlow's own strategies), and `boosters` for XGBoost and LightGBM.

Importing a folder imports its framework. Users import the public names from `hocket.train.torch`, `hocket.train.jax`,
`hocket.train.keras` and `hocket.train.tensorflow`. `contract` defines the interface of a framework; each folder's
module ``framework`` implements it. The other modules here serve several frameworks: `rank_states` keeps a strategy's
state in a rank, `weights` saves arrays by name, `global_mean` computes means over all ranks' rows. `report_callback` is
the base of the callbacks for both Keras versions. `tf_config` sets a process up before TensorFlow is imported.
"""
