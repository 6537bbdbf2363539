"""Interfaces of other libraries over Hocket's parts. Each is importable under the path that its programs expect.

- `classic`: Ray Train's trainer of 2022, as `hocket.train.Trainer`.
- `horovod`: Horovod's functions, as `hocket.train.horovod.torch`, ``keras`` and ``jax``.
- `experiments`: searches by one call, as `hocket.tune.run`.
- `multiprocessing`: process pools, as `hocket.util.multiprocessing`.
- `joblib`: a backend of joblib, as `hocket.util.joblib`.

This package stands on all others, and no other package needs it: those paths only name what is here. So a release can
ship it by itself.
"""
