"""AMD's devices through AMD SMI, as `devices` and `device_sampler` access NVIDIA's through NVML.

Their names in CUDA_VISIBLE_DEVICES, which HIP reads as its own variable, are HIP's device numbers. Written for the
interface of amdsmi 7.0 and tested only with a substitute: it has never run on a device.
"""

import contextlib
import importlib
import logging
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from walras.device_samples import MOST_DEVICES, DeviceSample
from workers.device_sampler import driver_answer, value_within

log = logging.getLogger(__name__)

_MEBIBYTE = 2**20
#: A product's name without the maker's: `mi300x`, `mi210`, `rx-7900-xtx`, `w7900`.
_MODEL = re.compile(r"\b(MI\d{2,3}[AX]?|(?:Radeon )?RX \d{4}(?: XTX?| GRE)?|W\d{4}X?)\b", re.IGNORECASE)


@contextlib.contextmanager
def opened_amdsmi() -> Iterator[Any]:
    """Yields AMD SMI, opened; None where the machine has none."""
    try:
        amdsmi: Any = importlib.import_module("amdsmi")
        amdsmi.amdsmi_init(amdsmi.AmdSmiInitFlags.INIT_AMD_GPUS)
    except (Exception, SystemExit) as error:  # it loads the driver's library when it is imported, in ways of its own
        log.debug("no AMD SMI: %s", error)
        yield None
        return
    try:
        yield amdsmi
    finally:
        amdsmi.amdsmi_shut_down()


def amd_devices() -> list[tuple[str, str, int | None]]:
    """Returns (number as text, canonical name, number) of every GPU, by HIP's numbers; empty without AMD SMI."""
    with opened_amdsmi() as amdsmi:
        if amdsmi is None:
            return []
        found: list[tuple[str, str, int | None]] = []
        for number, handle in sorted(_handles(amdsmi).items()):
            facts = driver_answer(partial(amdsmi.amdsmi_get_gpu_asic_info, handle)) or {}
            found.append((str(number), canonical_amd_name(str(facts.get("market_name", ""))), number))
        return found


def canonical_amd_name(product: str) -> str:
    """Converts a product name: `AMD Instinct MI300X` is `mi300x`; an unknown product is `rocm-gpu`."""
    model = _MODEL.search(product)
    return model[1].lower().removeprefix("radeon ").replace(" ", "-") if model else "rocm-gpu"


def sample_amd_devices(names: Sequence[str]) -> list[DeviceSample]:
    """Returns one sample of each device that answers, by its position in `names` (numbers as text)."""
    with opened_amdsmi() as amdsmi:
        if amdsmi is None:
            return []
        handles = _handles(amdsmi)
        wanted = ((device, handles.get(int(name))) for device, name in enumerate(names[:MOST_DEVICES]))
        return [_sample(amdsmi, device, handle) for device, handle in wanted if handle is not None]


def _handles(amdsmi: Any) -> dict[int, Any]:
    """Returns the GPUs by HIP's numbers; by their order where the release does not report these."""
    found = {}
    for position, handle in enumerate(driver_answer(amdsmi.amdsmi_get_processor_handles) or []):
        # Releases before 6.4 have no such function: asked for inside, so that this is one more thing not told.
        told = driver_answer(partial(_hip_number, amdsmi, handle))
        found[told if isinstance(told, int) and 0 <= told < MOST_DEVICES else position] = handle
    return found


def _hip_number(amdsmi: Any, handle: Any) -> Any:
    return amdsmi.amdsmi_get_gpu_enumeration_info(handle)["hip_id"]


def _sample(amdsmi: Any, device: int, handle: Any) -> DeviceSample:
    memory = driver_answer(partial(amdsmi.amdsmi_get_gpu_vram_usage, handle)) or {}
    power = driver_answer(partial(amdsmi.amdsmi_get_power_info, handle)) or {}
    activity = driver_answer(partial(amdsmi.amdsmi_get_gpu_activity, handle)) or {}
    watts = (value_within(power.get(f"{name}socket_power"), 0, 100_000) for name in ("current_", "average_", ""))
    used, total = (value_within(memory.get(name), 0, 2**30) for name in ("vram_used", "vram_total"))
    return DeviceSample(
        device=device,
        utilization=value_within(activity.get("gfx_activity"), 0, 100),
        memory_used_bytes=None if used is None else int(used) * _MEBIBYTE,
        memory_bytes=None if total is None else int(total) * _MEBIBYTE,
        temperature_c=_temperature(amdsmi, handle),
        # Releases fill one of them or another, and the rest with the largest number that there is, or with 0.
        power_w=next((each for each in watts if each), None),
    )


def _temperature(amdsmi: Any, handle: Any) -> float | None:
    """Returns the temperature of the chip's hottest point; where a device does not report it, of its edge."""
    for place in ("HOTSPOT", "EDGE"):

        def ask(place: str = place) -> Any:
            kind, metric = amdsmi.AmdSmiTemperatureType[place], amdsmi.AmdSmiTemperatureMetric.CURRENT
            return amdsmi.amdsmi_get_temp_metric(handle, kind, metric)

        if (found := value_within(driver_answer(ask), -100, 300)) is not None:
            return found
    return None
