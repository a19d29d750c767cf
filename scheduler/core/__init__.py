"""The scheduler as a pure state machine: `SchedulerCore.handle(event) -> [commands]`. No I/O, no clock."""
