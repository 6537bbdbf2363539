"""Where Ray's programs look for progress bars; its other trials are not here."""

from hocket._base import missing as _missing

_missing.explain(__name__, ("tqdm_ray",))
