"""joblib's ``Parallel`` on Hocket's workers, which scikit-learn uses, too."""

from hocket.compat.joblib import register_hocket as register_hocket
from hocket.compat.joblib import register_ray as register_ray
