"""What a machine with GPUs shows: told speeds beside measured ones, and two jobs on one device.

    python -m benchmarks gpu [--row speeds slices mps]

Speeds: training steps of models whose operations are known, on one GPU of this machine, beside what the catalog's data
sheet and counted operations tell of it before anything was measured (`optimizer.prediction.step_time`), and that
interval of 80 %. The models take random data that lies on the device; arithmetic is bf16 under autocast, or tf32.
ResNet-50 is torchvision's, if it is installed.

Slices and mps: two training jobs under a server and `walras agent` on one GPU, without and with NVIDIA's multi-process
service. The figure is the sum of the parts of their speeds alone that they keep; 1 is one after the other.
"""

import importlib
import importlib.util
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from benchmarks.needs import NotHereError
from benchmarks.tables import Measured
from optimizer.planning.machine_recommendation import accelerator_specs
from optimizer.prediction.predictor import KindFacts, Layout, SpeedCell
from optimizer.prediction.step_time import RooflinePredictor
from tests.support.gpu_machine import BUSY, WAITING, GpuMachine, gpus_here, multi_process_service, share_a_device
from walras.spec.catalog import load_catalog
from workers.devices import Accelerators

ROWS = ("speeds", "slices", "mps")
_WARM_UP_S, _MEASURED_S = 2.0, 6.0
_TOKENS = 384
#: Name, samples of a step, and operations of forward and backward pass over one sample (six for each weight and token).
_MODELS = (
    ("resnet50", 256, 24.5e9),
    ("bert_base_squad", 64, 6 * 110e6 * _TOKENS),
    ("bert_large_squad", 32, 6 * 335e6 * _TOKENS),
)


def measure(scale: float, row: str) -> list[Measured]:
    """The figures of one row."""
    found = gpus_here()
    if found is None:
        raise NotHereError("this machine has no GPU that PyTorch can use")
    if row == "speeds":
        return [_speeds(found.name, scale)]
    service = "multi-process service" if row == "mps" else "time slices"
    measured = Measured("Two jobs on one GPU", f"{found.name}, {service}")
    if row == "mps" and shutil.which("nvidia-cuda-mps-control") is None:
        raise NotHereError("this machine has no nvidia-cuda-mps-control")
    for what, envs in (("wait for most of a step", WAITING), ("keep the device busy", BUSY)):
        with tempfile.TemporaryDirectory() as folder:
            kept = _kept(Path(folder), found, envs, through_service=row == "mps")
        measured.add(f"two that {what} keep", kept, "of one's speed")
    return [measured]


def _kept(folder: Path, found: Accelerators, envs: dict[str, str], *, through_service: bool) -> float:
    with ExitStack() as stack:
        environ = stack.enter_context(multi_process_service(folder / "mps")) if through_service else {}
        machine = GpuMachine(folder, found, **environ)
        stack.callback(machine.close)
        return share_a_device(machine.start(), envs)


def _speeds(name: str, scale: float) -> Measured:
    measured = Measured("Training on one GPU, told before it was measured", name)
    sheet = load_catalog().sheet(name)
    for model, batch, flops in _MODELS:
        if model == "resnet50" and importlib.util.find_spec("torchvision") is None:
            continue
        for precision in ("bf16", "tf32"):
            per_s = _samples_per_s(model, batch, precision, scale)
            what = f"{model}, {precision}, batch {batch}"
            measured.add(what, per_s, "samples/s")
            specs = None if sheet is None else accelerator_specs(sheet, precision)
            if specs is None or isinstance(specs, str):
                continue
            kind = KindFacts(model, flops_per_sample=flops)
            told = RooflinePredictor().fit(()).predict(SpeedCell(kind, specs, Layout(batch)))
            measured.add("   told", batch * told.steps_per_s, "samples/s")
            measured.add("   interval from", batch * told.low, "samples/s", at_most=per_s)
            measured.add("   interval to", batch * told.high, "samples/s", at_least=per_s)
    return measured


def _samples_per_s(model: str, batch: int, precision: str, scale: float) -> float:
    import torch

    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    step = (_image_step if model == "resnet50" else _language_step)(model, batch)
    autocast: Any = torch.autocast("cuda", torch.bfloat16) if precision == "bf16" else nullcontext()
    with autocast:
        _run_for(step, _WARM_UP_S * scale)
        steps, took_s = _run_for(step, _MEASURED_S * scale)
    torch.cuda.empty_cache()
    return batch * steps / took_s


def _run_for(step: Callable[[], object], least_s: float) -> tuple[int, float]:
    import torch

    torch.cuda.synchronize()
    began, steps = time.monotonic(), 0
    while time.monotonic() - began < least_s:
        for _ in range(5):
            step()
        torch.cuda.synchronize()
        steps += 5
    return steps, time.monotonic() - began


def _image_step(model: str, batch: int) -> Callable[[], object]:
    import torch

    models: Any = importlib.import_module("torchvision.models")
    network = getattr(models, model)().cuda().to(memory_format=torch.channels_last)
    images = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (batch,), device="cuda")
    return _trained(network, lambda: torch.nn.functional.cross_entropy(network(images), labels))


def _language_step(model: str, batch: int) -> Callable[[], object]:
    """An encoder of BERT's sizes: token embeddings, the layers, and a head over two classes for each token."""
    import torch
    from torch import nn

    layers, width = (24, 1024) if "large" in model else (12, 768)
    layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True, activation="gelu")
    parts = (nn.Embedding(30522, width), nn.TransformerEncoder(layer, layers), nn.Linear(width, 2))
    network = nn.Sequential(*parts).cuda()
    words = torch.randint(30522, (batch, _TOKENS), device="cuda")
    labels = torch.randint(2, (batch * _TOKENS,), device="cuda")
    return _trained(network, lambda: nn.functional.cross_entropy(network(words).flatten(0, 1), labels))


def _trained(network: Any, loss_of: Callable[[], Any]) -> Callable[[], object]:
    import torch

    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()

    return step
