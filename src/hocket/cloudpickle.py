"""The library cloudpickle itself, for programs that use it as ``ray.cloudpickle.dumps(...)``."""

import cloudpickle as _library

CloudPickler = _library.CloudPickler
Pickler = _library.Pickler
dump = _library.dump
dumps = _library.dumps
load = _library.load
loads = _library.loads
register_pickle_by_value = _library.register_pickle_by_value
unregister_pickle_by_value = _library.unregister_pickle_by_value
