"""How the programs are run: as files of their own, since what is imported at a program's top is a part of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

DIGITS: Final = '''
def load_mnist():
    """scikit-learn's digits in MNIST's form, as there is nothing to download: each pixel nine times as large, with a margin."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.kron(digits.images * 15.9, np.ones((1, 3, 3)))
    return np.pad(images, ((0, 0), (2, 2), (2, 2))).astype(np.uint8), digits.target.astype(np.uint8)
'''
"""A part of a program that begins with ``import numpy as np``."""

_CHOICES: Final = ("TF_USE_LEGACY_KERAS", "KERAS_BACKEND", "HOCKET_ENGINE")
"""What the tests' own environment may have chosen."""


def run(text: str, folder: Path, *arguments: str, name: str = "program.py") -> subprocess.CompletedProcess[str]:
    """Run a program in a folder that is also its user's home."""
    path = folder / name
    path.write_text(text)
    environment = {name: value for name, value in os.environ.items() if name not in _CHOICES}
    environment |= {"HOME": str(folder), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, str(path), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def read_result(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what a program has printed, if it ended well."""
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def read_refusal(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line of a program that was refused: its error, with what to write instead."""
    assert done.returncode == 1, (done.stdout, done.stderr)
    return done.stderr.strip().splitlines()[-1]
