"""An opinion of its own on every start and stop of a log: what was told must allow it. It asks nothing of the core."""

from dataclasses import dataclass, field
from typing import Any

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.events import Booking, BookingsDeclared, JobRestored
from walras.cluster import NodeId
from walras.job_request import JobId, JobRequest
from walras.states import Reason

#: Stops for others' benefit, which an owner may forbid.
FOR_OTHERS = (Reason.POLICY_PREEMPTED, Reason.POLICY_MOVED, Reason.INFRA_DEVICE_FAULT)


@dataclass
class RulesOracle:
    """Reads a fleet's log as it grows."""

    requests: dict[JobId, JobRequest] = field(default_factory=dict)
    leaving: set[NodeId] = field(default_factory=set)
    silent: set[NodeId] = field(default_factory=set)
    tools: dict[NodeId, tuple[str, ...]] = field(default_factory=dict)
    bookings: tuple[Booking, ...] = ()
    #: Attempts that began, and that were asked to leave for others' benefit.
    began: set[tuple[JobId, int]] = field(default_factory=set)
    asked: set[tuple[JobId, int]] = field(default_factory=set)
    _log: list[tuple[Any, list[cmd.Command]]] = field(default_factory=list)
    _read: int = 0

    def read(self, log: list[tuple[Any, list[cmd.Command]]]) -> None:
        """Judges what was added since the last call; a core that took over has a new log."""
        if log is not self._log:
            self._log, self._read = log, 0
        for event, commands in log[self._read :]:
            self._hear(event)
            for command in commands:
                self._judge(command, event.at)
        self._read = len(log)

    def _hear(self, event: Any) -> None:
        match event:
            case ev.JobSubmitted() | JobRestored():
                self.requests[event.job.job_id] = event.job
            case ev.NodeJoined(node_id=node_id):
                self.leaving.discard(node_id)
                self.silent.discard(node_id)
                self.tools.pop(node_id, None)
            case ev.NodeLeaving(node_id=node_id):
                self.leaving.add(node_id)
            case ev.NodeUncordoned(node_id=node_id):
                self.leaving.discard(node_id)
            case ev.NodeUnreachable(node_id=node_id):
                self.silent.add(node_id)
            case ev.NodeBack(node_id=node_id):
                self.silent.discard(node_id)
            case ev.NodeTools(node_id=node_id, tools=tools):
                self.tools[node_id] = tools
            case BookingsDeclared(bookings=bookings):
                self.bookings = bookings

    def _judge(self, command: cmd.Command, at: float) -> None:
        match command:
            case cmd.Start(job_id=job_id, attempt=number) | cmd.Prepare(job_id=job_id, attempt=number):
                if (job_id, number) not in self.began:
                    self.began.add((job_id, number))
                    for part in command.placement.parts:
                        self._judge_place(self.requests[job_id], part.node_id, at)
            case cmd.Revoke(job_id=job_id, attempt=number, reason=reason) if reason in FOR_OTHERS:
                request = self.requests[job_id]
                assert request.preemptible, f"job {job_id}, which may not be stopped, is stopped: {reason}"
                assert (job_id, number) not in self.asked, f"job {job_id} is asked to leave twice"
                self.asked.add((job_id, number))
            case cmd.NodeCordoned(node_id=node_id):
                self.leaving.add(node_id)
            case cmd.NodeReadmitted(node_id=node_id):
                self.leaving.discard(node_id)

    def _judge_place(self, request: JobRequest, node_id: NodeId, at: float) -> None:
        assert node_id not in self.leaving | self.silent, f"job {request.job_id} starts on {node_id}, which is away"
        has = self.tools.get(node_id)
        for either in request.tools if has is not None else ():
            assert set(either) & set(has or ()), f"job {request.job_id} starts on {node_id}, which lacks {either}"
        for booking in self.bookings:
            if node_id in booking.node_ids and booking.is_active(at):
                assert booking.project == request.project, f"job {request.job_id} starts on booked {node_id}"
