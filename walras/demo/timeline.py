"""The timeline picture: who ran where, when, and what the pools cost meanwhile."""

from pathlib import Path

from walras.api import AttemptView
from walras.demo.recording import Recording, ran

_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")


def draw_timeline(recording: Recording, path: Path) -> None:
    """Write a PNG: one lane per accelerator above, prices of pools below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    lanes = lane_names(recording)
    kinds = sorted({job.kind for job in recording.jobs.values()})
    colour = {kind: _COLOURS[index % len(_COLOURS)] for index, kind in enumerate(kinds)}
    figure, (above, below) = pyplot.subplots(
        2, 1, sharex=True, figsize=(12, 2.5 + 0.45 * len(lanes)), gridspec_kw={"height_ratios": [len(lanes) + 1, 3]}
    )
    for job in recording.jobs.values():
        for attempt in ran(job):
            from_s, to_s = attempt_span(recording, attempt)
            for lane in attempt_lanes(attempt):
                above.barh(
                    lanes.index(lane), to_s - from_s, left=from_s, height=0.8, color=colour[job.kind], edgecolor="white"
                )
                above.text(from_s + 0.5, lanes.index(lane), f"{job.id}.{attempt.attempt}", fontsize=7, va="center")
    above.set_yticks(range(len(lanes)), lanes, fontsize=8)
    above.invert_yaxis()
    above.set_title("who ran where (job.attempt); accelerators are emulated")
    handles = [Patch(color=colour[kind]) for kind in kinds]
    above.legend(handles=handles, labels=kinds, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for pool, points in price_lines(recording).items():
        below.step([at for at, _ in points], [price for _, price in points], where="post", label=pool)
    below.set_xlabel("seconds since the first submission")
    below.set_ylabel(price_unit(recording), fontsize=7)
    below.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def attempt_span(recording: Recording, attempt: AttemptView) -> tuple[float, float]:
    """From the grant of the accelerators to their return, seconds."""
    from_s = recording.seconds(attempt.leased_at)
    return from_s, recording.seconds(attempt.ended_at) if attempt.ended_at else from_s


def attempt_lanes(attempt: AttemptView) -> list[str]:
    """`node:0,1` as the lanes `node:0` and `node:1`."""
    lanes = []
    for part in attempt.placement:
        node, _, devices = part.rpartition(":")
        lanes += [f"{node}:{device}" for device in devices.split(",")]
    return lanes


def lane_names(recording: Recording) -> list[str]:
    """All lanes used or there, in a fixed order."""
    there = {f"{name}:{index}" for name, span in recording.nodes.items() for index in range(span.node.accelerators)}
    used = {lane for job in recording.jobs.values() for attempt in ran(job) for lane in attempt_lanes(attempt)}
    return sorted(there | used)


def price_lines(recording: Recording) -> dict[str, list[tuple[float, float]]]:
    """Points (seconds, price) by pool."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for sample in recording.prices:
        for price in sample.prices:
            lines.setdefault(price.pool, []).append((sample.at_s, price.price))
    return lines


def price_unit(recording: Recording) -> str:
    units = [price.unit for sample in recording.prices for price in sample.prices if price.unit]
    return units[-1] if units else "price"
