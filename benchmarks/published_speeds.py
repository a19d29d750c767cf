"""How far middling training gets on each accelerator of what its data sheet promises, by what others published.

A publication tells speeds of some accelerators side by side. What each accelerator achieves, against a V100, is found
by least squares of logarithms over publications; each counts once, by its median over the models it trained. The
catalog ships the results (`achieves` of configs/catalog/accelerators.yaml), which a test holds against this file.
"""

from collections.abc import Mapping, Sequence
from math import exp, log, sqrt

import numpy as np

#: Speed of each accelerator in one publication, in any unit.
Publication = Mapping[str, float]

#: fp32 TFLOP/s and GB/s, as the catalog has them.
SHEETS = {
    "k80": (4.113, 240.0),
    "m60": (4.8, 160.0),
    "p100": (9.526, 732.0),
    "v100": (15.7, 900.0),
    "t4": (8.1, 320.0),
    "rtx-6000": (16.3, 672.0),
}
REFERENCE = "v100"
PUBLICATIONS: tuple[Publication, ...] = (
    # CM-DARE, ICDCS 2020 (cake-lab/CM-DARE, Apache-2.0), four CNNs: .041/.106, .083/.218, .145/.392, .493/1.406 s.
    {"p100": 1.0, "k80": 0.375},
    # Transient servers, ICAC 2019 (arXiv 1903.00045): seconds of 64k steps of ResNet-32.
    {"p100": 1 / 5417, "v100": 1 / 4436},
    # spotDNN, IWQoS 2023: samples/s of ResNet-110, of one of the machine's accelerators.
    {"v100": 1885.0, "t4": 750.0, "m60": 1018.0 / 2, "k80": 2115.0 / 8},
    # Zeus (ml-energy/zeus, Apache-2.0): epoch times of five networks at the power limit where each is fastest.
    {"v100": 1.0, "p100": 0.54, "rtx-6000": 0.72},
)
#: Those of one chip achieve alike.
SAME_CHIP = {"rtx-2080-ti": "rtx-6000", "rtx-8000": "rtx-6000"}


def published() -> dict[str, float]:
    """By accelerator; 1 for a V100."""
    return achieved(publications())


def publications() -> list[dict[str, float]]:
    """Logs of speed over what data sheets promise."""
    return [
        {name: log(speed / sqrt(SHEETS[name][0] * SHEETS[name][1])) for name, speed in each.items()}
        for each in PUBLICATIONS
    ]


def achieved(ratios: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """`ratios`: of each publication, logs of speed over what the sheet promises, up to a constant."""
    names = sorted({name for each in ratios for name in each} - {REFERENCE})
    rows, values = [], []
    for place, each in enumerate(ratios):
        for name, value in each.items():
            row = np.zeros(len(names) + len(ratios))
            if name != REFERENCE:
                row[names.index(name)] = 1.0
            row[len(names) + place] = 1.0
            rows.append(row)
            values.append(value)
    found = np.linalg.lstsq(np.array(rows), np.array(values), rcond=None)[0]
    answer = {REFERENCE: 1.0} | {name: exp(value) for name, value in zip(names, found.tolist(), strict=False)}
    return answer | {name: answer[chip] for name, chip in SAME_CHIP.items() if chip in answer}
