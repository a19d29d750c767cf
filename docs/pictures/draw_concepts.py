"""Draws the pictures of docs/concepts.md into a folder: `python docs/pictures/draw_concepts.py FOLDER`.

What the first three show is not made up: they are drawn from what `walras policy solve` answers to a problem that comes
with Walras. The same answers draw the same bytes.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

ROOT = Path(__file__).resolve().parents[2]
COLOURS = {
    "resnet50": "#4269d0",
    "transformer": "#efb118",
    "lstm": "#3ca951",
    "a3c": "#ff725c",
    "recommender": "#a463f2",
}
RENT, SURPLUS, GREY = "#9498a0", "#3ca951", "#d9dce1"


def answer_to(problem: str) -> dict[str, Any]:
    """What `walras policy solve` plans for a problem that comes with Walras."""
    walras = Path(sys.executable).with_name("walras")
    command = [walras, "policy", "solve", f"example:{problem}", "--policy", "walras", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=300)
    plan: dict[str, Any] = json.loads(done.stdout)["plan"]
    return plan


def rent_of(job: dict[str, Any], prices: dict[str, float]) -> float:
    """What the job pays for its place: accelerators times the price of their pool."""
    return sum(count * prices[pool] for pool, count in job["uses"].items())


def draw_pools(axes: Axes, problem: dict[str, Any], plan: dict[str, Any]) -> None:
    """Each accelerator as a square, in the colour of the job that the plan puts there."""
    for row, (pool, about) in enumerate(problem["pools"].items()):
        holders = [job["name"] for job in plan["jobs"] for _ in range(int(job["uses"].get(pool, 0)))]
        price = plan["prices"]["pools"][pool]
        axes.text(-0.3, -row, f"{pool}\nprice {price:.3f}", ha="right", va="center", fontsize=9)
        for column in range(about["capacity"]):
            name = holders[column] if column < len(holders) else ""
            axes.add_patch(
                plt.Rectangle((column, -row - 0.4), 0.9, 0.8, facecolor=COLOURS.get(name, "white"), edgecolor=RENT)
            )
            axes.text(column + 0.45, -row, name or "free", ha="center", va="center", fontsize=7)
    axes.set_xlim(-1.6, 4)
    axes.set_ylim(-len(problem["pools"]) + 0.4, 0.6)
    axes.set_axis_off()


def draw_worths(axes: Axes, plan: dict[str, Any]) -> None:
    """What each job's place is worth to it: the rent at the prices, and the surplus that is left."""
    jobs = sorted(plan["jobs"], key=lambda job: -job["surplus"] - rent_of(job, plan["prices"]["pools"]))
    for row, job in enumerate(jobs):
        rent = rent_of(job, plan["prices"]["pools"])
        place = " + ".join(f"{count:g} {pool}" for pool, count in job["uses"].items())
        axes.barh(-row, rent, color=RENT, label="rent: accelerators × price" if row == 0 else None)
        axes.barh(-row, job["surplus"], left=rent, color=SURPLUS, label="surplus" if row == 0 else None)
        axes.text(-0.01, -row, f"{job['name']} on {place}", ha="right", va="center", fontsize=9)
    axes.set_yticks([])
    axes.set_xlabel("worth")
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    axes.spines[["top", "right", "left"]].set_visible(False)


def draw_certificates(axes: Axes, plans: dict[str, dict[str, Any]]) -> None:
    """What each plan is worth beside what no plan can exceed."""
    for row, (title, plan) in enumerate(plans.items()):
        scored = plan["yardstick"]
        axes.barh(-row, scored["bound"], height=0.7, color=GREY)
        axes.barh(-row, scored["objective"], height=0.4, color=COLOURS["resnet50"])
        axes.text(-0.02, -row, title, ha="right", va="center", fontsize=9)
        told = f"the plan {scored['objective']:.3f}, no plan above {scored['bound']:.3f}: gap {scored['gap']:.0%}"
        axes.text(scored["bound"] + 0.02, -row, told, ha="left", va="center", fontsize=8)
    axes.set_xlim(0, 2.6)
    axes.set_yticks([])
    axes.set_xlabel("worth")
    axes.spines[["top", "right", "left"]].set_visible(False)


def draw_lease(axes: Axes) -> None:
    """Two machines over time: the first falls silent, its lease runs out, and the second one takes over."""
    silent, ended, started = 4.0, 9.0, 9.7
    for instant in (0.5, 1.5, 2.5, 3.5):
        axes.annotate("", (instant, 0.42), (instant, 0.95), arrowprops={"arrowstyle": "<->", "color": RENT})
    axes.text(2, 1.05, "heartbeats renew the lease", ha="center", fontsize=8)
    axes.plot([silent, silent], [-1.5, 1], color=RENT, linestyle=":")
    axes.text(silent + 0.05, 1.05, "the network breaks", fontsize=8)
    axes.barh(0, ended, height=0.6, color=COLOURS["resnet50"])
    axes.text(2, 0, "attempt 1 on A", ha="center", va="center", color="white", fontsize=9)
    axes.text(6.5, 0, "it runs on, under its lease", ha="center", va="center", color="white", fontsize=8)
    axes.plot([ended, ended], [-1.5, 0.8], color=RENT, linestyle=":")
    axes.text(ended, 0.9, "the lease is over:\nA ends the ranks itself", ha="left", fontsize=8)
    axes.barh(-1, 4, left=started, height=0.6, color=COLOURS["lstm"])
    axes.text(started + 2, -1, "attempt 2 on B", ha="center", va="center", color="white", fontsize=9)
    axes.text(started + 0.1, -1.75, "from the checkpoint\nthat was recorded", fontsize=8)
    axes.annotate("", (12.2, -0.68), (12.2, -0.1), arrowprops={"arrowstyle": "->", "color": COLOURS["a3c"]})
    axes.text(9.7, 0, "a result of attempt 1 that comes late\nfinds fence 2, and does not count", fontsize=8)
    axes.set_xlim(-0.3, 14)
    axes.set_ylim(-1.9, 1.5)
    axes.set_axis_off()


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    problem = json.loads((ROOT / "configs/problems/three_pools.json").read_text())
    plans = {
        "five jobs on three pools": answer_to("three_pools"),
        "two gangs of three on four": answer_to("gangs_of_three"),
    }
    plan = plans["five jobs on three pools"]
    sizes = {"pools": (6.4, 2.2), "prices": (7.2, 2.6), "certificate": (7.2, 1.6), "lease": (8.4, 2.8)}
    with matplotlib.rc_context({"svg.hashsalt": "walras", "font.size": 9, "figure.facecolor": "white"}):
        for name, size in sizes.items():
            figure, axes = plt.subplots(figsize=size, layout="constrained")
            if name == "pools":
                draw_pools(axes, problem, plan)
            elif name == "prices":
                draw_worths(axes, plan)
            elif name == "certificate":
                draw_certificates(axes, plans)
            else:
                draw_lease(axes)
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            plt.close(figure)


if __name__ == "__main__":
    main()
