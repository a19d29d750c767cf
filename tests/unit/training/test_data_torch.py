"""Skipping at the sampler of real torch loaders."""

import json
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, WeightedRandomSampler

from walras.training import Checkpoint, Loop, saving
from walras.training.batch_source import resumable_source
from walras.training.probe import LoaderWatch

pytestmark = pytest.mark.slow


class Recording(Dataset[int]):
    """A map-style dataset that remembers what was read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        self.read.append(index)
        return index


def batches(loader: Any, epoch: int, skip: int = 0) -> list[list[int]]:
    return [[int(x) for x in batch] for batch in resumable_source(loader, seed=3).begin(epoch, skip)]


def loaders() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(5)
    weighted = WeightedRandomSampler([1.0] * 20, 20)
    return {
        "shuffled": DataLoader(Recording(), batch_size=3, shuffle=True),
        "sequential": DataLoader(Recording(), batch_size=3),
        "with a generator": DataLoader(Recording(), batch_size=3, shuffle=True, generator=generator),
        "distributed": DataLoader(
            Recording(), batch_size=3, sampler=DistributedSampler(Recording(), num_replicas=2, rank=1)
        ),
        "weighted": DataLoader(Recording(), batch_size=3, sampler=weighted),
    }


@pytest.mark.parametrize("name", ["shuffled", "sequential", "with a generator", "distributed", "weighted"])
def test_the_rest_of_an_epoch_is_the_same_rest(name: str) -> None:
    """After skipping, the same batches follow, nothing skipped is read, and the global generator stays where it was."""
    loader = loaders()[name]
    whole = batches(loader, epoch=2)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    loader.dataset.read.clear()
    assert batches(loader, epoch=2, skip=2) == whole[2:]
    assert loader.dataset.read == [index for batch in whole[2:] for index in batch]
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("name", ["shuffled", "with a generator", "distributed", "weighted"])
def test_every_epoch_has_an_order_of_its_own(name: str) -> None:
    """The order is a function of the epoch, not of how often the loader was iterated."""
    loader = loaders()[name]
    assert batches(loader, epoch=0) != batches(loader, epoch=1)
    assert batches(loader, epoch=1) == batches(loader, epoch=1)


def test_the_scripts_own_loader_is_left_as_it_was() -> None:
    """Iterating through the loop does not change what the loader itself does."""
    loader = loaders()["shuffled"]
    sampler, batch_sampler = loader.sampler, loader.batch_sampler
    batches(loader, epoch=0, skip=1)
    assert loader.sampler is sampler
    assert loader.batch_sampler is batch_sampler
    assert batch_sampler.sampler is sampler
    assert sampler.generator is None
    torch.manual_seed(1)
    assert len(list(loader)) == 7


def test_random_states_come_back_exactly() -> None:
    """Python, numpy and torch draw the same numbers after a restore, through JSON."""
    random.gauss(0, 1)
    np.random.standard_normal(3)
    kept = json.loads(json.dumps(saving.capture_random_state()))

    def draw() -> tuple[float, float, float]:
        return random.gauss(0, 1), float(np.random.standard_normal()), float(torch.rand(()))

    first = draw()
    saving.restore_random_state(kept)
    assert draw() == first


def test_a_state_that_could_not_be_loaded_again_is_refused_at_the_first_save(tmp_path: Any) -> None:
    """An object of the script's own class in a state is found out while there is still somebody to read the error."""

    class Own:
        pass

    class Holder:
        def state_dict(self) -> dict[str, Any]:
            return {"thing": Own, "weights": torch.zeros(2)}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    globals()["Own"] = Own
    Own.__qualname__ = "Own"
    with pytest.raises(TypeError, match="holder"):
        Loop(Checkpoint(tmp_path, holder=Holder())).save()


def test_a_loss_that_requires_grad_is_reported_without_a_warning() -> None:
    """As the script has it at hand; warnings are errors here."""
    weights = torch.ones(3, requires_grad=True)
    loop = Loop()
    for _ in loop.steps(range(3)):
        loop.report(loss=(weights * weights).sum(), norm=weights.norm().reshape(1))
    assert loop._values.message_fields()["first_values"] == {"loss": 3.0, "norm": pytest.approx(3**0.5)}
    assert not any(value.requires_grad for value in loop._values._newest.values())


def test_batches_of_another_size_go_on_at_the_same_sample() -> None:
    """A resized loader gives the same order in other pieces, and the script's own loader is left as it is."""
    for name, loader in loaders().items():
        source = resumable_source(loader, seed=3)
        size = source.batch_size
        assert size is not None
        whole = [int(x) for batch in source.begin(2, 0) for x in batch]
        if not source.resize(2 * size):
            continue
        assert source.batch_size == 2 * size
        resized = [[int(x) for x in batch] for batch in source.begin(2, 1)]
        assert [x for batch in resized for x in batch] == whole[2 * size :][: sum(map(len, resized))], name
        assert {len(batch) for batch in resized[:-1]} <= {2 * size}
        assert loader.batch_size == size
        assert next(len(batch) for batch in loader) == size


@pytest.mark.parametrize("persistent", [False, True])
def test_worker_processes_skip_what_was_done(persistent: bool) -> None:
    """Also in the first epoch of a process, which is where a resumed job begins."""
    loader = DataLoader(Recording(), batch_size=3, shuffle=True, num_workers=1, persistent_workers=persistent)
    rest = batches(loader, epoch=2, skip=2)
    assert rest == batches(loaders()["shuffled"], epoch=2)[2:]
    assert batches(loader, epoch=2)[2:] == rest


@pytest.mark.parametrize("persistent", [False, True])
def test_worker_processes_read_on_by_other_parts(persistent: bool) -> None:
    """Parts that workers have read ahead are dropped where shares change: each sample comes once, in its step."""
    loader = DataLoader(Recording(), batch_size=4, num_workers=1, persistent_workers=persistent)
    source, own = resumable_source(loader, seed=3), range(1)
    parts = source.parts(0, 0, lambda whole: own)
    found = [[int(x) for x in next(parts)[0]] for _ in range(2)]
    own = range(2, 4)
    found += [[int(x) for x in batch] for batch, _ in source.parts(0, 2, lambda whole: own)]
    assert found == [[0], [4], [10, 11], [14, 15], [18, 19]]


def test_a_profile_run_gives_parts_again_without_drawing_them() -> None:
    """Made-up data stand for a loader whose batches are shared, too: each is as large as the one it repeats."""

    class Own(DataLoader[int]):
        """Watched alone: the class of everybody else stays as it is."""

    LoaderWatch(Own, made_up=True)
    source = resumable_source(Own(Recording(), batch_size=4), seed=3)
    for _ in range(2):
        found = [([int(x) for x in batch], whole) for batch, whole in source.parts(0, 0, lambda whole: range(1, 3))]
        assert found == [([1, 2], 4), ([5, 6], 4), ([1, 2], 4), ([5, 6], 4), ([1, 2], 4)]
