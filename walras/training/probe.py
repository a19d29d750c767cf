"""A profiler's probe inside a rank: it times updates and data loaders, and notes the files that are read.

A rank that is profiled is started with WALRAS_PROBE set and a `sitecustomize` that calls `install`; the script itself
is left as it is. Once it has imported torch, an update is over when its first optimizer has stepped. After as many
updates as were asked for, each rank writes `rank-N.json` and ends.

Made-up data are a loader's own first batches, held in memory and given again and again: they have the right shapes, and
are neither read nor prepared. An epoch keeps its number of batches.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any

from walras.training.batch_source import samples_in
from walras.training.model_counting import ModelFactCounter

#: The number of batches that synthetic data consist of.
HELD_BATCHES = 2
#: The most files that are recorded.
MAX_FILES = 100_000
#: Files below these folders do not count as data of a job.
_SYSTEM = ("/proc/", "/dev/", "/sys/", "/etc/", "/usr/lib", "/lib")
_PACKAGES = ("/site-packages/", "/dist-packages/")


class LoaderWatch:
    """Stands between a script and every DataLoader that it iterates over."""

    def __init__(self, loader_class: Any, made_up: bool) -> None:
        #: Seconds for which the script waited for batches so far, the number of batches, and the samples in one of
        #: them.
        self.waited_s = 0.0
        self.batches = 0
        self.samples: int | None = None
        self._begin = loader_class.__iter__
        #: Synthetic batches by dataset and batch size. The dataset is kept, too, so that its identity is not reused.
        self._held: dict[tuple[int, Any], tuple[Any, list[Any]]] = {}

        def begin(loader: Any) -> Iterator[Any]:
            return _TimedIterator(self, self._made_up(loader) if made_up else self._begin(loader))

        loader_class.__iter__ = begin

    def _made_up(self, loader: Any) -> Iterator[Any]:
        key = (id(loader.dataset), loader.batch_size)
        if key not in self._held:
            self._held[key] = (loader.dataset, list(islice(self._begin(loader), HELD_BATCHES)))
        batches = self._held[key][1]
        try:
            many = len(loader)
        except TypeError:
            return cycle(batches)
        return islice(cycle(batches), many)

    def took(self, seconds: float, batch: Any) -> None:
        """Records that the script waited so long for this batch."""
        self.waited_s += seconds
        self.batches += 1
        if self.samples is None:
            self.samples = samples_in(batch)


class _TimedIterator:
    """Times each batch; in all else it is the loader's own iterator."""

    def __init__(self, watch: LoaderWatch, batches: Iterator[Any]) -> None:
        self._watch = watch
        self._batches = batches

    def __iter__(self) -> _TimedIterator:
        return self

    def __next__(self) -> Any:
        began_at = time.perf_counter()
        batch = next(self._batches)
        self._watch.took(time.perf_counter() - began_at, batch)
        return batch

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


class OpenedFiles:
    """Writes down the files that this process and its loader workers open to read, once each.

    What a library opens behind Python's back is seen only while it is open at the end.
    """

    def __init__(self, folder: Path) -> None:
        self._list = os.open(folder / "files.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._seen: set[str] = set()
        places = (sys.prefix, os.__file__.rsplit("/", 1)[0], folder)
        self._not_data = tuple({os.path.realpath(place) for place in places})
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            is_read = isinstance(flags, int) and flags & os.O_ACCMODE == os.O_RDONLY
            if is_read and isinstance(path, str | bytes | os.PathLike):
                self._note(os.fsdecode(path))

    def note_open_ones(self) -> None:
        """Add the files that are open now."""
        for number in os.listdir("/proc/self/fd"):
            try:
                self._note(os.readlink(f"/proc/self/fd/{number}"))
            except OSError:
                continue

    def _note(self, path: str) -> None:
        if path in self._seen or len(self._seen) >= MAX_FILES:
            return
        self._seen.add(path)
        whole = os.path.realpath(path)
        if whole.startswith((*_SYSTEM, *self._not_data)) or any(name in whole for name in _PACKAGES):
            return
        if whole.endswith((".py", ".pyc", ".so")):
            return
        if "\n" not in whole and os.path.isfile(whole):
            os.write(self._list, os.fsencode(whole) + b"\n")


PROBE_VARIABLE = "WALRAS_PROBE"
#: Every probed process draws the same random numbers, so that several runs read the same samples.
PROBE_SEED = 0
MADE_UP, REAL = "made_up", "real"


@dataclass(frozen=True)
class ProbeOptions:
    """The settings of one run."""

    #: The folder for results.
    folder: str
    #: `made_up`: the first batches again and again, from memory; `real`: what the loader reads.
    data: str = REAL
    #: Updates before timing starts, and updates to time.
    warm_up: int = 5
    updates: int = 40
    #: Whether to count operations, layers and kept activations, in two more updates.
    facts: bool = False
    #: Whether to record which files are read.
    files: bool = False


def install() -> None:
    """Installs the probe in this process if WALRAS_PROBE asks for it. Called before the script begins."""
    text = os.environ.get(PROBE_VARIABLE, "")
    if text and "torch" not in sys.modules:
        sys.meta_path.insert(0, _AfterTorch(Probe(ProbeOptions(**json.loads(text)))))


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Attaches the probe as soon as torch has been imported."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return spec
        load: Callable[[Any], None] = spec.loader.exec_module

        def load_and_attach(module: Any) -> None:
            load(module)
            self._probe.attach(module)

        # This one loader object belongs to torch itself.
        object.__setattr__(spec.loader, "exec_module", load_and_attach)
        return spec


class Probe:
    """The probe in one rank."""

    def __init__(self, wanted: ProbeOptions) -> None:
        self._wanted = wanted
        self._rank = int(os.environ.get("RANK", "0"))
        self._pid = os.getpid()
        self._torch: Any = None
        self._optimizer: Any = None
        self._on_gpu = False
        self._updates = 0
        #: When each timed update ended, after the instant at which the last untimed one did.
        self._ended_at: list[float] = []
        #: Seconds spent in the loader, and batches it gave, up to each of these instants.
        self._waited_s: list[float] = []
        self._batches: list[int] = []
        self._loaders: LoaderWatch | None = None
        self._facts: ModelFactCounter | None = None
        self._files: OpenedFiles | None = None
        path = Path(wanted.folder) / f"rank-{self._rank}.updates"
        self._progress = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)

    def attach(self, torch: Any) -> None:
        """Hooks into torch: its optimizers and data loaders. Files opened before do not count as the job's data."""
        self._files = OpenedFiles(Path(self._wanted.folder)) if self._wanted.files else None
        self._torch = torch
        torch.manual_seed(PROBE_SEED)
        random.seed(PROBE_SEED)
        importlib.import_module("torch.optim.optimizer").register_optimizer_step_post_hook(self._stepped)
        loader = importlib.import_module("torch.utils.data").DataLoader
        self._loaders = LoaderWatch(loader, made_up=self._wanted.data == MADE_UP)

    def _stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Handles a step of an optimizer: only the first one that ever stepped counts."""
        if self._optimizer is None:
            self._optimizer = optimizer
            self._on_gpu = any(p.is_cuda for group in optimizer.param_groups for p in group["params"])
        elif optimizer is not self._optimizer or os.getpid() != self._pid:
            return
        self._updates += 1
        os.pwrite(self._progress, b"%12d" % self._updates, 0)
        timed = self._updates - self._wanted.warm_up
        if 0 <= timed <= self._wanted.updates:
            self._mark()
        if timed >= self._wanted.updates:
            self._after(timed - self._wanted.updates)

    def _mark(self) -> None:
        if self._on_gpu:
            self._torch.cuda.synchronize()
        assert self._loaders is not None
        self._ended_at.append(time.perf_counter())
        self._waited_s.append(self._loaders.waited_s)
        self._batches.append(self._loaders.batches)

    def _after(self, extra: int) -> None:
        """Handles the updates after the timed ones: counts facts, then writes the results and ends the process."""
        if self._wanted.facts and self._facts is None:
            self._facts = ModelFactCounter(self._torch)
        if self._facts is None or self._facts.counted(extra):
            self._write()
            raise SystemExit(0)

    def _write(self) -> None:
        assert self._loaders is not None
        at, waited, batches = self._ended_at, self._waited_s, self._batches
        result = {
            "rank": self._rank,
            "world_size": int(os.environ.get("WORLD_SIZE", "1")),
            "update_s": [later - earlier for earlier, later in pairwise(at)],
            "wait_s": [later - earlier for earlier, later in pairwise(waited)],
            "batches_per_update": (batches[-1] - batches[0]) / max(1, len(batches) - 1),
            "samples_per_batch": self._loaders.samples,
            "finite": self._is_finite(),
            "device": "gpu" if self._on_gpu else "cpu",
            "threads": self._torch.get_num_threads(),
            "peak_memory_bytes": self._peak_memory(),
            "facts": self._facts.found(self._optimizer) if self._facts is not None else None,
        }
        if self._files is not None:
            self._files.note_open_ones()
        path = Path(self._wanted.folder) / f"rank-{self._rank}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(result))
        os.rename(partial, path)

    def _is_finite(self) -> bool:
        """Returns whether all parameters are finite: a loss that was NaN leaves NaN parameters."""
        parameters = [p for group in self._optimizer.param_groups for p in group["params"] if p.is_floating_point()]
        return all(bool(p.detach().isfinite().all()) for p in parameters)

    def _peak_memory(self) -> int:
        """Returns the peak memory in bytes: of the accelerator, or of the process where there is none."""
        if self._on_gpu:
            return int(self._torch.cuda.max_memory_allocated())
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
