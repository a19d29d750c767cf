"""Which attempt holds which device, and the port that node rank 0 of a gang keeps until its ranks start."""

import socket
from dataclasses import dataclass, field

AttemptKey = tuple[int, int]


@dataclass
class Hold:
    devices: list[int]
    #: Set between prepare and start on node rank 0.
    port: socket.socket | None = None
    #: Steady-clock instant at which a hold that was never started is given up; None once started.
    expires_at: float | None = None


@dataclass
class Holds:
    device_count: int
    _holds: dict[AttemptKey, Hold] = field(default_factory=dict)

    def conflict(self, key: AttemptKey, devices: list[int]) -> str:
        """Why these devices cannot be held by this attempt; empty if they can."""
        unknown = [device for device in devices if not 0 <= device < self.device_count]
        if unknown or not devices or len(set(devices)) != len(devices):
            return f"no such devices here: {devices} of {self.device_count}"
        for other, hold in self._holds.items():
            taken = sorted(set(hold.devices) & set(devices))
            if other != key and taken:
                return f"devices {taken} are held by job {other[0]}, attempt {other[1]}"
        return ""

    def take(self, key: AttemptKey, hold: Hold) -> None:
        self._release_port(key)
        self._holds[key] = hold

    def start(self, key: AttemptKey, devices: list[int]) -> None:
        """The attempt runs: its port is free for its ranks, its devices are held until `release`."""
        self.take(key, Hold(devices))

    def release(self, key: AttemptKey) -> None:
        self._release_port(key)
        self._holds.pop(key, None)

    def is_prepared(self, key: AttemptKey) -> bool:
        hold = self._holds.get(key)
        return hold is not None and hold.expires_at is not None

    @property
    def prepared(self) -> list[AttemptKey]:
        return [key for key in self._holds if self.is_prepared(key)]

    def expired(self, now: float) -> list[AttemptKey]:
        return [key for key, hold in self._holds.items() if hold.expires_at is not None and hold.expires_at <= now]

    def port_of(self, key: AttemptKey) -> int:
        hold = self._holds.get(key)
        return 0 if hold is None or hold.port is None else int(hold.port.getsockname()[1])

    def _release_port(self, key: AttemptKey) -> None:
        hold = self._holds.get(key)
        if hold is not None and hold.port is not None:
            hold.port.close()
            hold.port = None
