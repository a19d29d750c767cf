"""The training loop: counts steps, keeps the pace, and ends when the scheduler asks, with everything saved.

This file decides when a step is over and what follows from it. How to skip batches, what a checkpoint is, and what the
ranks agree on are in `data`, `checkpoint` and `gang`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from walras.training import facts, network, rng
from walras.training.checkpoint import Checkpoint, rank_values, read_json, read_state, write_json, write_state
from walras.training.data import Source, default_seed, resumable, same_place, samples_in
from walras.training.fork import Fork
from walras.training.gang import Gang, Wish
from walras.training.link import Link
from walras.training.noise import gauge_of
from walras.training.rates import Meter, Pacer
from walras.training.settings import read_settings
from walras.training.values import Values

#: "Checkpointed, requeue me."
EXIT_CHECKPOINTED = 85
#: Asked to stop, with nothing saved.
EXIT_STOPPED = 143

REPORT_EVERY_S = 0.5
POLL_EVERY_S = 0.02
DRAIN_S = 2.0


class Loop:
    """Drives the epochs and steps of one training script.

    Args:
        checkpoint: what to save; without one the loop counts and reports only.
        steps: stop after this many steps in all, over all attempts. Default: those the job was submitted with, if any.
        seed: fixes the order of shuffling loaders, with the epoch. Default: torch's own seed.
        noise_every: measure the noise of the gradient every so many updates of the checkpoint's optimizer, and report
            it as `gradient_noise` (samples). Default: never.
        fork: the ranks are parts of a fork: each takes steps of its own, and all of them count.
    """

    def __init__(
        self,
        checkpoint: Checkpoint | None = None,
        *,
        steps: int | None = None,
        seed: int | None = None,
        noise_every: int | None = None,
        fork: Fork | None = None,
    ):
        self._settings = read_settings(os.environ)
        self._checkpoint, self._fork = checkpoint, fork
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
        self._resume_from: tuple[int, int, int] | None = None  # epoch, part, batch
        self._saved_by: tuple[int, int | None] = (1, None)  # ranks, samples in each batch of a rank
        self._resumed: Path | None = None
        self._is_ready = self._in_epochs = self._is_finished = False
        self._epoch_count: int | None = None
        #: All ranks have agreed to stop, and have saved what could be. A job that was at its end ends as if nobody had.
        self._is_ending = False
        # Both stand in until the first step: by then the script has initialised torch.distributed, if it ever does.
        if fork is not None and noise_every is not None:
            raise ValueError("noise_every: the noise of a gradient is not measured in a fork")
        self._link, self._gang, self._meter = Link("", 0, 0), Gang(self._settings.rank), Meter()
        self._noise = gauge_of(checkpoint.objects if checkpoint else (), noise_every, self._settings.rank)
        self._pacer = Pacer(self._settings.pace) if self._settings.pace else None
        self._sources: list[tuple[Any, Source]] = []
        self._values = Values()
        self._facts = facts.FactsGauge(self._values, self._settings, is_wanted=fork is None)
        self._readers = 1  # ranks that read batches of their own at each position; the parts of a fork share theirs
        self._saved_step = -1
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
        resume_epoch, resume_part, resume_batch = self._resume_from or (-1, -1, 0)
        part, self._part = self._part, self._part + 1
        is_resuming = self.epoch == resume_epoch
        if is_resuming and part < resume_part:
            return
        source = self._source(batches)
        skip = self._prepare(source, resume_batch) if is_resuming else 0
        # A script with an epoch loop of its own calls steps() once per epoch: that count is its epoch then.
        epoch = self.epoch if self._in_epochs else part
        iterator = source.begin(epoch, skip) if self._fork is None else self._own_batches(self._fork, source, epoch)
        iterator = self._facts.watch(iterator, source)
        self._batch = skip
        if is_resuming:
            self._resume_from = None
            self._restore_rng()
        try:
            while not self._is_at_limit:
                try:
                    batch = next(iterator)
                except StopIteration:
                    if self._is_ending and not self._may_be_done:
                        self._stop()
                    break
                if self._is_ending:
                    self._stop()
                if self._noise is not None and self._noise.samples is None:
                    self._noise.samples = self._samples(source, batch)
                yield batch
                self._end_step()
        except GeneratorExit:
            self._count(time.monotonic())  # the script broke out in the middle of a step
            raise
        finally:
            self._report(time.monotonic())
        if self._is_at_limit and not self._in_epochs:
            self._finish()

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
        if self._checkpoint is None or not self._checkpoint.is_open:
            return False
        if self._gang.is_alone and self._gang.rank != 0:
            self._saved_step = self.step
            return True  # ranks that do not know each other: the first one's state stands for all
        started_at = time.monotonic()
        is_saved = self._save(self._checkpoint, started_at)
        self._meter.disturb()
        self._saved_at = time.monotonic()
        if is_saved:
            self._saved_step = self.step
        return is_saved

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
        self._gang.meet()
        self._values.take(network.measure(self._gang, self._settings))
        self._readers = self._gang.world_size if self._fork is None else 1
        self._link = Link(self._settings.socket, self._gang.rank, os.getpid())
        self._saved_at = time.monotonic()
        checkpoint = self._checkpoint
        reference = checkpoint.open(self._settings, self._say) if checkpoint is not None else None
        # Nobody saves before everybody has looked at what there was to resume from.
        self._gang.all_succeeded(True)
        if checkpoint is not None and reference is not None:
            self._restore(checkpoint, Path(reference.path))
        if self._fork is not None:
            self._fork.join(self._gang, self._seed)

    def _restore(self, checkpoint: Checkpoint, folder: Path) -> None:
        self._resumed = folder
        checkpoint.load_shared(folder)
        saved = read_json(folder, "loop")
        checkpoint.values.update(saved["values"])
        self.step = self._saved_step = int(saved["step"])
        self.epoch = int(saved["epoch"])
        self._resume_from = (self.epoch, int(saved["part"]), int(saved["batch"]))
        self._saved_by = (int(saved["world_size"]), saved.get("batch_size"))
        if not self._seed_was_given and (own := rank_values(folder, self._gang.rank)) is not None:
            self._seed = int(own["seed"])

    def _source(self, batches: Any) -> Source:
        for known, source in self._sources:
            if known is batches:
                return source
        source = resumable(batches, self._seed)
        self._sources = [*self._sources[-7:], (batches, source)]
        return source

    def _prepare(self, source: Source, batch: int) -> int:
        """Bring a source to where the checkpoint was made; returns how many batches that skips."""
        assert self._resumed is not None
        name = f"loader-{self._gang.rank}"
        batch = same_place(batch, self._saved_by, (self._readers, source.batch_size))
        if self._saved_by[0] != self._readers:
            self._say(f"saved by {self._saved_by[0]} ranks, resumed by {self._readers}: at batch {batch}")
        if (self._resumed / f"{name}.pt").exists() or (self._resumed / f"{name}.json").exists():
            source.load_state(read_state(self._resumed, name))
            return batch
        if source.can_skip:
            return batch
        if batch > 0:
            self._say(f"this data cannot be resumed in mid-epoch: epoch {self.epoch} begins again at its first batch")
        return 0

    def _restore_rng(self) -> None:
        """Last of all: the skipping before must not have drawn from the generators."""
        assert self._resumed is not None
        if (own := rank_values(self._resumed, self._gang.rank)) is not None:
            rng.restore(own["rng"])

    # ------------------------------------------------------------------------------------------- every step

    @property
    def _is_at_limit(self) -> bool:
        return self._limit is not None and self.step >= self._limit

    def _samples(self, source: Source, batch: Any) -> int | None:
        """In one batch, over all ranks."""
        each = source.batch_size or samples_in(batch)
        return None if each is None else each * self._gang.world_size

    def _count(self, at: float) -> None:
        if self._fork is None:
            self.step += 1
            self._batch += 1
        if self._noise is not None:
            self._noise.batches += 1
        self._meter.step(at)

    def _own_batches(self, fork: Fork, source: Source, epoch: int) -> Iterator[Any]:
        """A part's batches, round by round; its steps and those of the others count when they have met."""
        if source.count is None:
            raise TypeError("the parts of a fork share data that has a length and can begin at any batch")
        while (left := source.count - self._batch) > 0 and not self._is_at_limit:
            if self._is_ending:  # before the next round: it may have no step for this part to stop at
                self._stop()
            whole = fork.begin(left if self._limit is None else min(left, self._limit - self.step))
            if self._pacer is not None:
                self._pacer.begin(time.monotonic())
            yield from islice(source.begin(epoch, self._batch + fork.own.start), len(fork.own))
            fork.meet()
            self.step, self._batch, self._stride = self.step + whole, self._batch + whole, whole
            self._save_or_stop(time.monotonic())

    def _end_step(self) -> None:
        now = time.monotonic()
        if self._pacer is not None:
            wait_s = self._pacer.wait_s(now)
            if wait_s > 0:
                self._link.wait(wait_s)
                now = time.monotonic()
        self._count(now)
        if now - self._polled_at >= POLL_EVERY_S:
            self._polled_at = now
            self._link.poll()
        if now - self._reported_at >= REPORT_EVERY_S:
            self._report(now)
        if self._fork is None:
            self._save_or_stop(now)

    def _save_or_stop(self, now: float) -> None:
        checkpoint = self._checkpoint
        if not self._settings.is_scheduled and checkpoint is None:
            return
        can_save = checkpoint is not None and checkpoint.is_open
        every_s, every_steps = (checkpoint.every_s, checkpoint.every_steps) if checkpoint and can_save else (None, None)
        is_due = every_s is not None and now - self._saved_at >= every_s
        is_due = is_due or (can_save and self._link.save_requested)
        wish = Wish(stop=self._link.stop_requested, save=is_due and self._gang.rank == 0)
        wish = self._gang.agree(self.step, wish, self._meter.steps_per_s)
        if wish.save:
            self._link.save_requested = False
        is_due = wish.stop or wish.save or (every_steps is not None and self.step % every_steps < self._stride)
        if is_due and self._saved_step != self.step:
            self.save()
        self._is_ending = self._is_ending or wish.stop

    @property
    def _may_be_done(self) -> bool:
        """At the end of a call of steps(): false if there are more epochs; only the script knows what else there is."""
        is_last = self._epoch_count is not None and self.epoch + 1 >= self._epoch_count
        return is_last or not self._in_epochs

    def _stop(self) -> None:
        saved = self._saved_step == self.step
        self._report(time.monotonic())
        self._link.drain(DRAIN_S)
        if not saved:
            self._say("asked to stop: nothing could be saved, this attempt's work is lost")
        sys.exit(EXIT_CHECKPOINTED if saved else EXIT_STOPPED)

    def _finish(self) -> None:
        """Training is over: save what came since the last checkpoint, and say where it ended."""
        if self.step != self._saved_step:
            self.save()
        self._report(time.monotonic())
        self._is_finished = True
        self._link.send({"type": "finished"})
        self._link.drain(DRAIN_S)

    # ------------------------------------------------------------------------------------------- saving

    def _save(self, checkpoint: Checkpoint, started_at: float) -> bool:
        """Every rank writes its part, then rank 0 commits; all ranks learn whether it worked."""
        is_written = True
        try:
            self._write(checkpoint)
        except OSError as error:
            is_written = False
            self._say(f"checkpoint at step {self.step} failed: {error}")
        if not self._gang.all_succeeded(is_written):
            return False
        return self._gang.all_succeeded(self._gang.rank != 0 or self._commit(checkpoint, started_at))

    def _write(self, checkpoint: Checkpoint) -> None:
        folder = checkpoint.partial(self.step)
        rank = self._gang.rank
        write_json(folder, f"rank-{rank}", {"rng": rng.capture(), "seed": self._seed})
        if self._sources and (state := self._sources[-1][1].state()) is not None:
            write_state(folder, f"loader-{rank}", state)
        if rank != 0:
            return
        checkpoint.write_shared(folder)
        position = {"step": self.step, "epoch": self.epoch, "part": max(0, self._part - 1), "batch": self._batch}
        batch_size = self._sources[-1][1].batch_size if self._sources else None
        sizes = {"world_size": self._readers, "batch_size": batch_size}
        write_json(folder, "loop", {**position, **sizes, "values": checkpoint.values})

    def _commit(self, checkpoint: Checkpoint, started_at: float) -> bool:
        self._link.poll()
        if self._link.lease_has_ended:
            self._say("the lease has ended: this checkpoint is not committed")
            return False
        try:
            reference = checkpoint.commit(self.step)
        except OSError as error:
            self._say(f"checkpoint at step {self.step} failed: {error}")
            return False
        took_s = time.monotonic() - started_at
        fields = {"step": reference.step, "path": reference.path, "digest": reference.digest, "took_s": took_s}
        self._link.send({"type": "commit", **fields})
        checkpoint.prune(self._link.recorded if self._settings.is_scheduled else None)
        return True

    # ------------------------------------------------------------------------------------------- telling

    def _report(self, now: float) -> None:
        self._reported_at = now
        if self._gang.rank != 0:
            return  # one voice: values of different ranks differ, and whose came last would be chance
        if self._noise is not None and (scale := self._noise.scale) is not None:
            self._values.take({"gradient_noise": scale})
        rate = self._fork or self._meter
        message = {
            "type": "progress",
            "steps": self.step,
            "steps_per_s": rate.steps_per_s,
            "samples": rate.samples,
            "pace": self._settings.pace,
            **self._values.told(),
        }
        self._link.send(message, may_drop=True)

    def _say(self, text: str) -> None:
        print(f"walras: {text}", file=sys.stderr, flush=True)
        self._link.send({"type": "note", "text": text[:2000]}, may_drop=True)
