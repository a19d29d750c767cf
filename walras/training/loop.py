"""The training loop: counts steps, keeps the pace, and ends when the scheduler asks, with everything saved.

This module decides when a step is over and what follows from it. `batch_source` skips batches, `checkpoint` defines
what is saved, `gang` lets the ranks agree.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from walras.training import gang, model_counting, saving
from walras.training.batch_sharing import BatchShares, Fork
from walras.training.batch_source import BatchSource, BatchSources, default_seed, rescale_position, samples_in
from walras.training.batch_tuning import NOISE_EVERY_AT_FIRST, BatchTuner, batch_tuner_for
from walras.training.checkpoint import REPLICATED, Checkpoint, TornCheckpoint, rank_values, seed_of
from walras.training.gang import Gang
from walras.training.measurements import (
    DataWaitMeter,
    DeviceWork,
    ReportedValues,
    StepPacer,
    ThroughputMeter,
    noise_meter_for,
    optimizer_among,
)
from walras.training.saving import (
    CheckpointSaver,
    DataPosition,
    FrozenState,
    PauseWatch,
    StuckWatch,
    is_replicated,
    read_batch_choice,
    read_position,
    seek_source,
)
from walras.training.supervisor_link import (
    DATA_WAIT_VALUE,
    EXIT_CHECKPOINT_LOST,
    EXIT_CHECKPOINTED,
    GRADIENT_NOISE_VALUE,
    SAVES_AS_STATED,
    SAVES_VALUE,
    ControlRequest,
    SupervisorLink,
    read_job_environment,
)

_T = TypeVar("_T")

#: Asked to stop, with nothing saved.
EXIT_STOPPED = 143

REPORT_EVERY_S = 0.5
POLL_EVERY_S = 0.02
DRAIN_S = 2.0
#: What keeping the state of an epoch's end for a save in the evaluation may take: seconds, or a part of the epoch.
FREEZING_S, FREEZING_PART = 0.05, 0.01
#: The value that `next` returns after the last batch.
_EXHAUSTED = object()


class Loop:
    """Drives the epochs and steps of one training script.

    Args:
        checkpoint: what to save; without one the loop counts and reports only.
        steps: stop after this many in all, over all attempts. Default: those the job was submitted with, if any.
        seed: fixes the order of shuffling loaders, with the epoch. Default: torch's own seed.
        noise_every: measure the noise of the gradient every so many updates of the checkpoint's optimizer, and report
            it as `gradient_noise` (samples). Default: never; 10 for a job that chooses its batch.
        fork: the ranks are parts of a fork: each takes steps of its own, and all of them count.
        shares: the ranks share each batch by speed; `steps` is given whole batches, and yields this rank's parts.
        on_change: the script bears another batch while it trains. Called with the samples of a step over all ranks
            before the first step, and again whenever the loop goes on with another batch: sets what follows from the
            batch (the learning rate). Needs `epochs`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint | None = None,
        *,
        steps: int | None = None,
        seed: int | None = None,
        noise_every: int | None = None,
        fork: Fork | None = None,
        shares: BatchShares | None = None,
        on_change: Callable[[int], None] | None = None,
    ):
        self._settings = read_job_environment(os.environ)
        self._checkpoint, self._fork, self._shares, self._on_change = checkpoint, fork, shares, on_change
        self._limit = steps if steps is not None else self._settings.steps
        self._seed = default_seed() if seed is None else seed
        self._seed_was_given = seed is not None
        #: Steps done, over all attempts (and all parts of a fork, as of their last meeting).
        self.step = 0
        self._stride = 1  # how many of them were counted at once
        #: The current epoch, from 0.
        self.epoch = 0
        self._batch = 0  # batches done in this call of steps(); together with part and epoch, the position
        self._part = 0  # how many times steps() was called in this epoch
        self._place: DataPosition | None = None  # to go on from
        self._resumed: Path | None = None
        self._new_samples = 0  # of a step over all ranks, from the next one on; 0: as it is
        self._has_changed = True
        self._is_ready = self._in_epochs = self._is_finished = False
        self._epoch_count: int | None = None
        #: All ranks have agreed to stop, and have saved if they could. A job at its last step still ends normally.
        self._is_ending = False
        # Both stand in until the first step: by then the script has initialised torch.distributed, if it ever does.
        saving.check_arguments(fork, shares, noise_every, on_change)
        self._link, self._gang, self._meter = SupervisorLink("", 0, 0), Gang(self._settings.rank), ThroughputMeter()
        self._tuner: BatchTuner | None = None  # of a job that chooses its batch itself
        self._can_tune = on_change is not None and optimizer_among(checkpoint.objects if checkpoint else ()) is not None
        if self._settings.largest_batch and self._can_tune:
            noise_every = noise_every or NOISE_EVERY_AT_FIRST
        self._noise = noise_meter_for(checkpoint.objects if checkpoint else (), noise_every, self._settings.rank)
        self._pacer = StepPacer(self._settings.pace) if self._settings.pace else None
        self._data_wait, self._device = DataWaitMeter(), DeviceWork()
        self._sources, self._values = BatchSources(), ReportedValues()
        self._facts = model_counting.ModelFactsReporter(self._values, self._settings, is_wanted=fork is None)
        self._readers = 1  # ranks that read batches of their own at each position; those of forks and shares do not
        self._saved_step = -1
        self._is_in_step = self._is_step_counted = False
        self._pause: PauseWatch | None = None  # nothing trains: a thread listens and saves
        self._freezing_s = self._paused_at = 0.0
        self._stuck: StuckWatch | None = None  # of a rank of a gang whose state is replicated
        self._settled: tuple[int, DataPosition, int] | None = None  # step, position and updates when a step ended last
        self._save_turn = threading.RLock()
        self._saved_at = self._polled_at = self._reported_at = 0.0

    # ------------------------------------------------------------------------------------------- for the script

    def epochs(self, count: int | None = None) -> Iterator[int]:
        """The epochs still to do, of `count` in all (None: until the limit of steps). Resumes in the middle of one."""
        self.resume()
        self._in_epochs, self._epoch_count = True, count
        while (count is None or self.epoch < count) and not self._is_at_limit:
            self._part = 0
            yield self.epoch
            if not self._is_at_limit:
                self.epoch, self._batch, self._part = self.epoch + 1, 0, 0
        self._in_epochs = False
        self._finish()

    def steps(self, batches: Any) -> Iterator[Any]:
        """The batches of this epoch that are still to be done; one step is over when the next batch is asked for.

        When the scheduler wants the attempt to end, all ranks save at the same step and the process exits with code 85
        (SystemExit, raised here), unless that was the last step of all.
        """
        self.resume()
        self._end_pause()
        part, self._part = self._part, self._part + 1
        if self._place is not None and self._place.epoch == self.epoch and part < self._place.part:
            return
        source = self._sources.of(batches, self._seed)
        self._batch = 0
        iterator = self._begin(source, part)
        try:
            while not self._is_at_limit:
                if self._new_samples:
                    iterator = self._begin(source, part)
                batch = self._next_batch(iterator)
                if self._is_ending and (batch is not _EXHAUSTED or not self._may_be_done):
                    self._stop()
                if batch is _EXHAUSTED:
                    break
                if self._noise is not None and self._noise.samples is None:
                    self._noise.samples = self._samples(source, batch)
                self._is_in_step, self._is_step_counted = True, False
                self._settle()
                yield batch
                self._is_in_step = False
                self._end_step()
        except GeneratorExit:
            self._is_in_step = False
            self._end_pause()
            self._count(time.monotonic())  # the script broke out in the middle of a step
            raise
        finally:
            self._report(time.monotonic())
        if self._is_at_limit and not self._in_epochs:
            self._finish()
        else:
            self._begin_pause()

    def evaluating(self, batches: Iterable[_T]) -> Iterator[_T]:
        """The batches of an evaluation. When the scheduler wants the attempt to end, it does so at the next of them.

        What was trained is saved at once. Within `steps()` it ends the current step: update the weights before, and not
        until the evaluation is over.
        """
        self.resume()
        is_in_step = self._is_in_step
        if is_in_step and not self._is_step_counted:
            self._count(time.monotonic())
            self._is_step_counted = True
        if self._pause is None:
            self._begin_pause()
        try:
            for batch in batches:
                if self._pause is not None and self._pause.may_leave and self._gang.is_alone:
                    self._end_pause()
                    self._stop()
                yield batch
        finally:
            self._meter.disturb()
            if is_in_step:
                self._end_pause()

    def _next_batch(self, iterator: Iterator[Any]) -> Any:
        """Returns the next batch, or `_EXHAUSTED`; measures how long the step waits for it."""
        self._device.mark()
        self._data_wait.asked(time.monotonic())
        batch = next(iterator, _EXHAUSTED)
        self._data_wait.got(time.monotonic(), is_hidden=self._device.is_under_way)
        return batch

    def report(self, **values: Any) -> None:
        """Show named numbers, such as loss, beside the job: those of rank 0.

        A tensor is given as it is, gradient and all; it is read when it is sent, about twice a second, and not here: a
        step does not wait for its accelerator. (The first of each name is read at once.)
        """
        if self._gang.rank != 0:
            return
        self._values.take(values)
        if self._is_finished:
            self._report(time.monotonic())

    def save(self) -> bool:
        """Save now, all ranks at the same step. False if there is nowhere to save to, or if it failed (and said so)."""
        self.resume()
        self._end_pause()
        if self._checkpoint is None or not self._checkpoint.is_open:
            return False
        if self._gang.is_alone and self._gang.rank != 0:
            self._saved_step = self.step
            return True  # ranks that do not know each other: the first one's state stands for all
        with self._save_turn:  # a thread may be saving the step before
            saver = self._saver(self._checkpoint)
        is_saved = saver.save(self.step, self._position, self._seed, self._sources.last)
        self._meter.disturb()
        self._data_wait.disturb()
        self._saved_at = time.monotonic()
        if is_saved:
            self._saved_step = self.step
        return is_saved

    def _saver(self, checkpoint: Checkpoint) -> CheckpointSaver:
        choice = None if self._tuner is None else self._tuner.as_saved()
        return CheckpointSaver(checkpoint, self._gang, self._link, self._log, self._settings, choice)

    @property
    def _position(self) -> DataPosition:
        source = self._sources.last
        size = None if source is None else source.batch_size
        return DataPosition(self.epoch, max(0, self._part - 1), self._batch, self._readers, size)

    def resume(self) -> bool:
        """Restore the checkpoint, if there is one. Called by `epochs` and `steps`; earlier by a script that wants
        to look at `step`, `epoch` or `checkpoint.values` first. True if something was restored."""
        if not self._is_ready:
            self._is_ready = True
            self._start()
        return self._resumed is not None

    # ------------------------------------------------------------------------------------------- starting

    def _start(self) -> None:
        self._gang = Gang(self._settings.rank)
        self._gang.connect()
        self._values.take(gang.measure_bandwidth(self._gang, self._settings))
        self._readers = self._gang.world_size if self._fork is None and self._shares is None else 1
        self._link = SupervisorLink(self._settings.socket, self._gang.rank, os.getpid())
        self._tuner = batch_tuner_for(self._settings, self._gang, self._can_tune, self._log)
        self._open()
        if self._fork is not None:
            self._fork.join(self._gang, self._seed)
        if self._shares is not None:
            self._seed = self._shares.join(self._gang, self._seed, self._settings.pace, self._values, self._log)

    def _open(self) -> None:
        self._saved_at, self._meter = time.monotonic(), ThroughputMeter()
        checkpoint = self._checkpoint
        try:
            reference = checkpoint.open(self._settings, self._log) if checkpoint is not None else None
        except TornCheckpoint as error:  # only of what a scheduler named: it has others, and may know better machines
            self._log(f"cannot resume: {error}")
            sys.exit(EXIT_CHECKPOINT_LOST)
        # No rank saves before all ranks have looked for a checkpoint to resume from.
        self._gang.all_succeeded(True)
        if checkpoint is not None and checkpoint.is_open:
            if self._is_replicated and self._stuck is None:
                save = (lambda: self._save_settled(checkpoint)) if self._is_first_here else None
                self._stuck = StuckWatch(self._link, save, lambda: self._leave_broken_gang(checkpoint))
            self._values.take({SAVES_VALUE: 1.0 if checkpoint.is_planned else SAVES_AS_STATED})
        if checkpoint is None or reference is None:
            return
        self._resumed, self._has_changed = (folder := Path(reference.path)), True
        checkpoint.load_shared(folder)
        self._place, self.step, values = read_position(folder)
        checkpoint.values.update(values)
        if self._tuner is not None:
            self._new_samples = self._tuner.restore(read_batch_choice(folder))
        self._saved_step, self.epoch = self.step, self._place.epoch
        if not self._seed_was_given and (seed := seed_of(folder, self._gang.rank)) is not None:
            self._seed = seed

    def _begin(self, source: BatchSource, part: int) -> Iterator[Any]:
        """Returns the batches of this epoch from the job's position on, in the batch size that is wanted now."""
        place, folder, self._place = self._place, None, None
        if place is not None and place.epoch == self.epoch:
            folder = self._resumed
            assert folder is not None
            reader = self._gang.rank if self._shares is None else 0  # all ranks have read the same
            batch = place.batch_for(self._readers, source.batch_size)
            if place.ranks != self._readers:
                self._log(f"saved by {place.ranks} ranks, resumed by {self._readers}: at batch {batch}")
            self._batch = seek_source(source, folder, reader, batch)
            if self._batch < batch:
                self._log(
                    f"this data cannot be resumed in mid-epoch: epoch {place.epoch} begins again at its first batch"
                )
        if self._new_samples:
            self._resize(source, self._new_samples)
        # A script with an epoch loop of its own calls steps() once per epoch: that count is its epoch then.
        epoch = self.epoch if self._in_epochs else part
        if self._fork is not None:
            own = self._own_batches(self._fork, source, epoch)
        elif self._shares is not None:
            own = self._shares.batches(source, epoch, self._batch)
        else:
            own = source.begin(epoch, self._batch)
        iterator = self._facts.watch(own, source.batch_size if self._shares is None else None)
        self._data_wait.begin()
        # Last of all: the skipping before must not have drawn from the generators.
        if folder is not None and (saved := rank_values(folder, self._gang.rank)) is not None:
            saving.restore_random_state(saved["rng"])
        if self._on_change is not None and self._has_changed:
            self._change(self._on_change, source)
        return iterator

    def _resize(self, source: BatchSource, samples: int) -> None:
        self._new_samples, before = 0, source.batch_size
        each, rest = divmod(samples, self._gang.world_size)
        if rest or not source.resize(each):
            self._log(f"this data cannot be had in batches of {samples}: they stay as they are")
            self._tuner = None
        elif self._tuner is not None:
            self._tuner.took(samples)
        self._batch = rescale_position(self._batch, (self._readers, before), (self._readers, source.batch_size))
        self._meter, self._has_changed = ThroughputMeter(), True
        if self._noise is not None:
            self._noise.resize(self._samples(source))

    def _change(self, on_change: Callable[[int], None], source: BatchSource) -> None:
        if (samples := self._samples(source)) is None:
            raise TypeError("on_change: it is not known how many samples are in a batch of this data")
        self._has_changed = False
        on_change(samples)

    # ------------------------------------------------------------------------------------------- every step

    @property
    def _is_at_limit(self) -> bool:
        return self._limit is not None and self.step >= self._limit

    @property
    def _steps_per_s(self) -> float | None:
        """The job's steps per second: an update with another batch than the first counts for what it is worth."""
        rate = (self._fork or self._meter).steps_per_s
        return rate if rate is None or self._tuner is None else rate * self._tuner.gain

    def _samples(self, source: BatchSource, batch: Any = None) -> int | None:
        """Samples in one batch over all ranks; None if unknown."""
        each = source.batch_size or (self._shares.whole if self._shares is not None else samples_in(batch))
        return None if each is None else each * self._readers

    def _count(self, at: float) -> None:
        if self._is_step_counted:
            self._is_step_counted = False
            return
        if self._fork is None:
            self._stride = 1 if self._tuner is None else self._tuner.steps_done(self._limit, self.step)
            self.step, self._batch = self.step + self._stride, self._batch + 1
        if self._noise is not None:
            self._noise.batches += 1
        self._meter.step(at)

    def _own_batches(self, fork: Fork, source: BatchSource, epoch: int) -> Iterator[Any]:
        """Yields a part's batches, round by round; steps of all parts count when the round has ended."""
        if source.count is None:
            raise TypeError("the parts of a fork share data that has a length and can begin at any batch")
        while (left := source.count - self._batch) > 0 and not self._is_at_limit:
            if self._is_ending:  # before the next round: it may have no step for this part to stop at
                self._stop()
            whole = fork.begin_round(left if self._limit is None else min(left, self._limit - self.step))
            if self._pacer is not None:
                self._pacer.begin(time.monotonic())
            yield from islice(source.begin(epoch, self._batch + fork.own.start), len(fork.own))
            fork.end_round()
            self.step, self._batch, self._stride = self.step + whole, self._batch + whole, whole
            self._save_or_stop(time.monotonic())

    def _end_step(self) -> None:
        now = time.monotonic()
        if self._pacer is not None:
            part = 1.0 if self._tuner is None else self._tuner.paced_part
            wait_s = self._pacer.wait_s(now, part if self._shares is None else self._shares.weight)
            if wait_s > 0:
                self._link.wait(wait_s)
                now = time.monotonic()
        self._count(now)
        self._settle()
        if now - self._polled_at >= POLL_EVERY_S:
            self._polled_at = now
            self._link.poll()
        if now - self._reported_at >= REPORT_EVERY_S:
            self._report(now)
        if self._fork is None:
            self._save_or_stop(now)

    def _save_or_stop(self, now: float) -> None:
        if not self._settings.is_scheduled and self._checkpoint is None:
            return
        opened = self._checkpoint if self._checkpoint is not None and self._checkpoint.is_open else None
        planned_s = self._link.checkpoint_every_s or self._settings.checkpoint_every_s
        is_due = opened is not None and (self._link.save_requested or opened.is_due(now - self._saved_at, planned_s))
        own = ControlRequest(self._link.stop_requested, is_due and self._gang.rank == 0)
        if self._tuner is not None and self._on_change is not None and self._in_epochs:
            own = self._tuner.with_request(own, self._meter, self._noise)
        agreed = self._gang.agree(self.step, own, self._steps_per_s if self._fork is None else self._meter.steps_per_s)
        if agreed.save:
            self._link.save_requested = False
        if self._tuner is not None and agreed.noise:
            self._new_samples = self._tuner.agreed(agreed)
        is_due = agreed.save or (opened is not None and opened.is_due_at(self.step, self._stride))
        if (is_due or agreed.stop) and self._saved_step != self.step:
            self.save()
        self._is_ending = self._is_ending or agreed.stop

    # ------------------------------------------------------------------------------------------- between steps

    def _begin_pause(self) -> None:
        """Lets a thread answer the scheduler from now on, with the state as it is now. Rank 0's stands for all."""
        checkpoint, now = self._checkpoint, time.monotonic()
        if self._stuck is not None:
            self._stuck.stepped_at = None
        is_wanted = (self._is_replicated and self._gang.rank == 0) or (
            self._settings.is_scheduled and self._gang.is_alone and self._gang.rank == 0 and self._fork is None
        )
        if checkpoint is None or not checkpoint.is_open or not is_wanted or self._is_ending:
            return
        frozen = None
        if self._saved_step != self.step:
            if self._freezing_s > max(FREEZING_S, FREEZING_PART * (now - self._paused_at)):
                return
            self._link.send({"type": "saving"})  # an object's state may take its time
            frozen = self._saver(checkpoint).freeze(self.step, self._position, self._seed, self._sources.last)
            self._link.send({"type": "saved"})
            self._freezing_s, self._paused_at = time.monotonic() - now, now
            if frozen is None:
                return
        self._pause = PauseWatch(self._link, lambda: self._save_frozen(checkpoint, frozen))

    @property
    def _is_replicated(self) -> bool:
        """Whether a rank may save for this gang without the others, because every rank has all of its state."""
        checkpoint = self._checkpoint
        if checkpoint is None or self._gang.is_alone or self._fork is not None or not self._settings.is_scheduled:
            return False
        # Shares of a batch are data parallel, whatever averages the gradients.
        layout = checkpoint.layout or (None if self._shares is None else REPLICATED)
        return is_replicated(checkpoint.given, layout)

    @property
    def _is_first_here(self) -> bool:
        """Whether this is the first of the gang's ranks on its machine."""
        return self._gang.rank % self._settings.ranks_per_machine == 0

    def _settle(self) -> None:
        """Notes where the job stands between two steps, for a gang that hangs in the next."""
        if self._stuck is not None:
            self._settled = self.step, self._position, self._stuck.updates
            self._stuck.stepped_at = time.monotonic()

    def _leave_broken_gang(self, checkpoint: Checkpoint) -> None:
        """Ends the process, after an exchange has failed, as one to be queued again: saves first, or another does."""
        settled, stuck = self._settled, self._stuck
        if settled is None or stuck is None or stuck.updates != settled[2]:
            return
        if self._is_first_here:
            self._save_settled(checkpoint)
            if self._saved_step != settled[0]:
                return
        self._link.drain(DRAIN_S)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_CHECKPOINTED)  # an end by the error would count as the script's own failure

    def _save_settled(self, checkpoint: Checkpoint) -> None:
        """Called while the gang hangs in a step, or has failed in one: saves the weights as they were before it."""
        with self._save_turn:
            settled, stuck = self._settled, self._stuck
            if settled is None or stuck is None or self._saved_step == settled[0]:
                return
            step, place, updates = settled
            saver = self._saver(checkpoint)
            frozen = saver.freeze(step, place, self._seed, self._sources.last) if stuck.updates == updates > 0 else None
            if frozen is None or stuck.updates != updates:
                self._log(f"not saved after step {step}: the weights were about to change")
            elif saver.save_alone(frozen):
                self._saved_step = step
                self._log(f"the gang is broken: rank {self._gang.rank} has saved step {step} without the others")

    def _save_frozen(self, checkpoint: Checkpoint, frozen: FrozenState | None) -> bool:
        """Called in the thread. `frozen`: None if all was saved when the pause began."""
        if frozen is None or self._saved_step == frozen.step:
            return True
        is_saved = self._saver(checkpoint).save_alone(frozen)
        if is_saved:
            self._saved_step, self._saved_at = frozen.step, time.monotonic()
        return is_saved

    def _end_pause(self) -> None:
        """Returns when no thread uses this loop any more."""
        if self._pause is not None:
            self._pause.end()
            self._is_ending = self._is_ending or (self._pause.may_leave and self._gang.is_alone)
            self._pause = None

    @property
    def _may_be_done(self) -> bool:
        """Returns whether training may be over at the end of a call of steps(): False if more epochs follow."""
        is_last = self._epoch_count is not None and self.epoch + 1 >= self._epoch_count
        return is_last or not self._in_epochs

    def _stop(self) -> None:
        saved = self._saved_step == self.step
        self._report(time.monotonic())
        self._link.drain(DRAIN_S)
        if not saved:
            self._log("asked to stop: nothing could be saved, this attempt's work is lost")
        sys.exit(EXIT_CHECKPOINTED if saved else EXIT_STOPPED)

    def _finish(self) -> None:
        """Ends training: saves if steps were made since the last checkpoint, and reports the final step."""
        self._end_pause()
        if self._stuck is not None:
            self._stuck.end()
            self._stuck = None
        if self.step != self._saved_step:
            self.save()
        self._report(time.monotonic())
        self._is_finished = True
        self._link.send({"type": "finished"})
        self._link.drain(DRAIN_S)

    # ------------------------------------------------------------------------------------------- telling

    def _report(self, now: float) -> None:
        self._reported_at = now
        if self._gang.rank != 0:
            return  # one voice: values of different ranks differ, and whose came last would be chance
        if self._noise is not None and (scale := self._noise.scale) is not None:
            self._values.take({GRADIENT_NOISE_VALUE: scale})
        if self._fork is None and (waits := self._data_wait.share) is not None:  # parts of a fork wait for each other
            self._values.take({DATA_WAIT_VALUE: waits})
        if self._tuner is not None:
            self._values.take(self._tuner.values)
        samples = (self._fork or self._meter).samples
        progress = {"steps": self.step, "steps_per_s": self._steps_per_s, "samples": samples}
        message = {"type": "progress", **progress, "pace": self._settings.pace, **self._values.message_fields()}
        self._link.send(message, may_drop=True)

    def _log(self, text: str) -> None:
        print(f"walras: {text}", file=sys.stderr, flush=True)
        self._link.send({"type": "note", "text": text[:2000]}, may_drop=True)
