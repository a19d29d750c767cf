"""What nobody measured, told by data sheets and counted operations alone, against published runs of known models.

MLPerf training 2.1, 4.0 and 5.0 (up to eight accelerators of one machine) and Lambda's benchmark (one accelerator) say
samples per second of models whose operations are known. The catalog's data sheets and the roofline predictor say what
Walras would have told of them before anybody ran them. Every run counts once for each model, accelerator and
arithmetic, by its median.
"""

import csv
import gzip
import re
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from optimizer.planning.machine_recommendation import accelerator_specs
from optimizer.prediction.predictor import KindFacts, Layout, SpeedCell
from optimizer.prediction.step_time import RooflinePredictor
from walras.model_facts import Family
from walras.spec.catalog import load_catalog

#: Operations of forward and backward pass over one sample. ResNet-50: as `configs/profiles/resnet50.yaml` has it. BERT:
#: six for each weight and token, of 384 tokens in Lambda's runs.
_FLOPS = {"resnet50": 24.5e9, "bert_base_squad": 6 * 110e6 * 384, "bert_large_squad": 6 * 335e6 * 384}
_GRADIENT_BYTES = {"resnet50": 102.2e6}
_FAMILIES: dict[str, Family] = {
    "resnet50": "convolution", "bert_base_squad": "transformer", "bert_large_squad": "transformer",
}  # fmt: skip
#: The accelerators' names there, and in the catalog.
_NAMES = {
    "NVIDIA H100-SXM5-80GB": "h100", "NVIDIA H100-SXM-80GB": "h100", "NVIDIA L40S": "l40s",
    "NVIDIA A100-SXM4-80GB (400W TDP)": "a100-80gb", "NVIDIA A100-SXM-80GB": "a100-80gb",
    "A100-40GB": "a100-40gb", "A100-80GB": "a100-80gb", "V100": "v100", "H100-SXM": "h100", "T4": "t4", "H200": "h200",
    "QuadroRTX6000": "rtx-6000",
}  # fmt: skip
_BATCH = 256.0
_MOST = 8
#: Lambda ran fp32 as frameworks do by default: as tf32 where there is any.
_ARITHMETIC = {"fp32": "tf32", "fp16": "fp16"}


@dataclass(frozen=True, slots=True)
class UtilisationCheck:
    """Samples per second of a model on so many accelerators of one machine: published, told, and the interval."""

    what: str
    published: float
    told: float
    low: float
    high: float

    @property
    def factor(self) -> float:
        """How far off, either way."""
        return max(self.told / self.published, self.published / self.told)

    @property
    def is_inside(self) -> bool:
        return self.low <= self.published <= self.high


def utilisation_checks(data: Path) -> list[UtilisationCheck]:
    """One for each model, accelerator, arithmetic and count that is published and that the catalog knows."""
    found: dict[tuple[str, str, str, int], list[float]] = {}
    with gzip.open(data / "profiles" / "mlperf_training.csv.gz", "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name, count = (
                _NAMES.get(row["accelerator"], ""),
                int(float(row["num_accelerators"])) if row["num_accelerators"] else _MOST + 1,
            )
            if row["benchmark"] == "resnet" and name and count <= _MOST and row["throughput_samples_s_median"]:
                key = ("resnet50", name, "fp16", count)
                found.setdefault(key, []).append(float(row["throughput_samples_s_median"]))
    with gzip.open(data / "profiles" / "throughputs.csv.gz", "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name = _NAMES.get(row["gpu_type"], "")
            if row["source"] == "lambda-v1" and row["num_gpus"] == "1" and row["model"] in _FLOPS and name:
                key = (row["model"], name, _ARITHMETIC[row["precision"]], 1)
                found.setdefault(key, []).append(float(row["samples_per_s"]))
    return [_check(*key, median(speeds)) for key, speeds in sorted(found.items())]


def language_checks(data: Path, family: Family | None = "transformer") -> list[UtilisationCheck]:
    """Language models: BERT (Lambda), and MPT of up to 30 billion parameters on one machine (LLM Foundry), whose
    operations follow from the part of the peak that each row states.
    """
    found: dict[tuple[str, str, str, int, float], list[float]] = {}
    with gzip.open(data / "profiles" / "throughputs.csv.gz", "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name, count, speed = _NAMES.get(row["gpu_type"], ""), int(row["num_gpus"]), float(row["samples_per_s"] or 0)
            if not name or count > _MOST or not speed:
                continue
            if row["source"].startswith("lambda") and count == 1 and row["model"].startswith("bert"):
                arithmetic = _ARITHMETIC[row["precision"]]
                found.setdefault((row["model"], name, arithmetic, 1, _FLOPS[row["model"]]), []).append(speed)
            elif row["source"] == "llm-foundry" and (stated := re.search(r"MFU=([\d.]+)", row["note"])):
                done = float(stated[1]) / 100.0 * load_catalog().accelerators[name].peak_flops["bf16"]
                found[row["model"], name, "bf16", count, done * count / speed] = [speed]
    return [
        _check(*key[:4], median(speeds), KindFacts(key[0], flops_per_sample=key[4], gradient_bytes=0.0, family=family))
        for key, speeds in sorted(found.items())
    ]


def _check(
    model: str, name: str, precision: str, count: int, published: float, kind: KindFacts | None = None
) -> UtilisationCheck:
    specs = accelerator_specs(load_catalog().accelerators[name], precision)
    assert not isinstance(specs, str), specs
    kind = kind or KindFacts(
        model,
        flops_per_sample=_FLOPS[model],
        gradient_bytes=_GRADIENT_BYTES.get(model),
        family=_FAMILIES[model],
    )
    told = RooflinePredictor().fit(()).predict(SpeedCell(kind, specs, Layout(_BATCH * count, accelerators=count)))
    samples = _BATCH * count
    return UtilisationCheck(
        f"{model}, {count} x {name}, {precision}",
        published,
        samples * told.steps_per_s,
        samples * told.low,
        samples * told.high,
    )
