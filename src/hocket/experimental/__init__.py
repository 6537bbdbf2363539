"""The place of progress bars in Ray; Ray's other experimental features are not here."""

from hocket._base import missing as _missing

_missing.explain(__name__, ("tqdm_ray",))
