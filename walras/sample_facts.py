"""What a sample costs a kind of job, wherever it runs: a value that people, jobs and predictors of speed pass on."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFacts:
    """None: nobody knows."""

    #: Floating-point operations of forward and backward pass, and bytes that they move to and from memory.
    flops_per_sample: float | None = None
    memory_bytes_per_sample: float | None = None
    #: What workers exchange at each update.
    gradient_bytes: float | None = None
    layers: int | None = None
    #: On an accelerator whatever the batch (weights, optimizer state), and more for each sample of it.
    resident_bytes: float | None = None
    activation_bytes: float | None = None
    #: What the host hands over for one sample.
    input_bytes: float | None = None
