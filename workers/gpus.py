"""What this machine has: accelerators (NVML, where nvidia-ml-py is installed), processors, memory."""

import importlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: A machine without accelerators runs as many single-rank jobs as it has places; one, unless told otherwise.
CPU = "cpu"


@dataclass(frozen=True)
class Accelerators:
    """The accelerators that may be used here. A device number is a position in `cuda_names`, where there are any."""

    #: Canonical name, such as `a100-40gb`.
    name: str
    count: int
    #: What CUDA_VISIBLE_DEVICES calls each of them (UUIDs: they mean the same to NVML and to CUDA).
    cuda_names: tuple[str, ...] = ()

    def visible_devices(self, devices: list[int]) -> str:
        """CUDA_VISIBLE_DEVICES for these devices; empty hides the GPUs of the machine from emulated ones."""
        return ",".join(self.cuda_names[device] for device in devices) if self.cuda_names else ""


@dataclass(frozen=True)
class Host:
    cpus: float
    memory_bytes: int


def detect_host() -> Host:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Host(cpus=float(len(os.sched_getaffinity(0))), memory_bytes=memory_bytes)


def detect_accelerators(environ: Mapping[str, str]) -> Accelerators:
    """The GPUs that NVML sees and CUDA_VISIBLE_DEVICES allows; without any, the machine is one place on its CPU."""
    found = _nvml_devices()
    allowed = environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        wanted = [word.strip() for word in allowed.split(",") if word.strip()]
        found = [device for index, device in enumerate(found) if str(index) in wanted or device[0] in wanted]
    if not found:
        return Accelerators(CPU, 1)
    names = {canonical_name(product, memory_bytes) for _, product, memory_bytes in found}
    # A machine is of one shape. Mixed GPUs in one machine: run one agent per type, each with its own visible devices.
    if len(names) > 1:
        raise ValueError(f"unlike GPUs in one machine ({', '.join(sorted(names))}): set CUDA_VISIBLE_DEVICES per agent")
    return Accelerators(names.pop(), len(found), tuple(uuid for uuid, _, _ in found))


def canonical_name(product: str, memory_bytes: int) -> str:
    """`NVIDIA A100-SXM4-40GB` is `a100-40gb`. Memory is in the name where a product is sold with more than one size."""
    model = re.search(
        r"\b(?:GeForce )?((?:RTX|GTX) ?(?:A?\d{3,4})(?: Ti| SUPER)?|[A-Z]{1,2}\d{1,3}S?|GB\d{3})\b", product
    )
    name = (model.group(1) if model else product.removeprefix("NVIDIA ")).lower().replace(" ", "-")
    gigabytes = round(memory_bytes / 2**30)
    sizes = {"a100": (40, 80), "v100": (16, 32), "h100": (80, 94)}.get(name)
    if sizes is None:
        return name
    return f"{name}-{min(sizes, key=lambda size: abs(size - gigabytes))}gb"


def _nvml_devices() -> list[tuple[str, str, int]]:
    """(UUID, product, memory) of every GPU, in NVML's order; none where there is no NVML."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return []
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return [
            (
                _text(nvml.nvmlDeviceGetUUID(handle)),
                _text(nvml.nvmlDeviceGetName(handle)),
                int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
            )
            for handle in handles
        ]
    finally:
        nvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
