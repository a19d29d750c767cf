"""Real data for the example scripts, from packages that are installed anyway: nothing is downloaded.

Both are read straight from their files. `sklearn.datasets.load_digits()` returns the same digits, but importing it
costs most of a second of processor time, and these scripts are started many times on small machines.
"""

import importlib.util
from pathlib import Path

import numpy as np
import torch


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Scikit-learn's handwritten digits: images (1797, 8, 8) from 0 to 1, and their labels (1797,)."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise SystemExit("these digits come with scikit-learn: pip install scikit-learn")
    rows = np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", delimiter=",", dtype=np.float32)
    return torch.from_numpy(rows[:, :-1].reshape(-1, 8, 8) / 16.0), torch.from_numpy(rows[:, -1]).long()


def python_manual(characters: int = 200_000) -> tuple[torch.Tensor, int]:
    """The language reference behind Python's `help()`: character codes (characters,), and how many codes there are."""
    module = importlib.util.find_spec("pydoc_data.topics")
    if module is None or module.origin is None:
        raise SystemExit("this Python comes without its manual (pydoc_data)")
    text = Path(module.origin).read_text(encoding="utf-8")[:characters]
    codes = {character: code for code, character in enumerate(sorted(set(text)))}
    return torch.tensor([codes[character] for character in text]), len(codes)
