"""A profile as JSON, and as a stacked-bar picture."""

from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from walras.errors import UserError
from walras.model_facts import precision_of
from walras.profiling.runs import RunTold, blocks
from walras.profiling.study import Profile

FORMAT = 1
_COLORS = {
    "compute": "#3b6fb6",
    "prepare": "#d1762d",
    "fetch": "#b5483f",
    "inside": "#4c9a5a",
    "network": "#7d62a8",
}


def as_json(profile: Profile) -> dict[str, Any]:
    """Seconds, bytes and counts; None where these runs do not tell."""
    facts, rank = profile.facts, profile.run("alone").ranks[0]
    return {
        "format": FORMAT,
        "job": profile.job,
        "kind": profile.kind,
        "ranks": profile.ranks,
        "device": rank.device,
        "step_s": profile.step_s,
        "steps_per_s": 1.0 / profile.step_s,
        "samples_per_step": profile.samples_per_step,
        "stalls_s": {stall.name: stall.seconds for stall in profile.stalls},
        "model": {
            "parameters": facts.parameters,
            "parameter_bytes": facts.parameter_bytes,
            "gradient_bytes": facts.gradient_bytes,
            "optimizer_bytes": facts.state_bytes,
            "layers": facts.layers,
            "flops_per_step_and_rank": facts.flops,
            "activation_bytes": facts.activation_bytes,
            "precision": precision_of(facts.bits, facts.exponent_bits),
            "peak_memory_bytes": rank.peak_memory_bytes,
        },
        "runs": {told.run.name: _run(told) for told in profile.runs},
        "notes": list(profile.notes),
    }


def as_profile_file(profile: Profile) -> dict[str, Any]:
    """The fields of a `walras.profile_file.ProfileFile`: what choosing machines needs to know of the job."""
    facts, rank = profile.facts, profile.run("alone").ranks[0]
    warm = profile.run("warm")
    data: dict[str, Any] = {
        "kind": profile.kind,
        "gradient_bytes": facts.gradient_bytes,
        "layers": facts.layers or None,
        "precision": precision_of(facts.bits, facts.exponent_bits),
        "resident_bytes": facts.parameter_bytes + facts.gradient_bytes + facts.state_bytes,
    }
    samples, passes = rank.samples_per_batch, max(1, round(rank.batches_per_update))
    if samples:
        means = blocks(warm.ranks[0].update_s)
        data["flops_per_sample"] = facts.flops / (samples * passes) or None
        data["activation_bytes"] = facts.activation_bytes / samples
        row = {
            "accelerator": profile.accelerator,
            "batch": samples * passes * profile.ranks,
            "accelerators": profile.ranks,
            "accumulated": passes - 1,
            "steps_per_s": 1.0 / profile.step_s,
            "spread": min(10.0, pstdev(means) / fmean(means)),
            "samples": len(means),
        }
        data["measured"] = [row]
    return {name: value for name, value in data.items() if value is not None}


def _run(told: RunTold) -> dict[str, Any]:
    first = told.ranks[0]
    return {
        "ranks": told.run.ranks,
        "threads": first.threads,
        "data": "real" if told.run.real_data else "made_up",
        "step_s": told.step_s,
        "loader_wait_s": told.wait_s,
        "updates": len(first.update_s),
        "batches_per_update": first.batches_per_update,
        "files": len(told.files) or len(told.run.evict),
    }


def draw(profile: Profile, path: Path) -> None:
    """One bar, stacked by where the seconds of a step go; the file's ending says which format.

    Raises UserError where matplotlib is missing or does not know the ending.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise UserError("a picture needs matplotlib", field="--picture", fix="pip install 'walras[server]'") from None
    with matplotlib.rc_context({"text.parse_math": False, "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(8.6, 1.9), layout="constrained")
        axes = figure.subplots()
        left = 0.0
        for stall in profile.stalls:
            if stall.seconds:
                width = 1000.0 * stall.seconds
                label = f"{stall.name} {width:.3g} ms"
                axes.barh([0], [width], left=left, color=_COLORS[stall.name], label=label)
                left += width
        axes.set(yticks=[], xlabel="milliseconds of one step", title=f"{profile.job}, {profile.ranks} ranks")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.45), ncols=5, frameon=False)
        try:
            figure.savefig(path)
        except (ValueError, OSError) as error:
            raise UserError(
                f"{path}: {error}", field="--picture", fix="a file that ends in .svg, .png or .pdf"
            ) from None
