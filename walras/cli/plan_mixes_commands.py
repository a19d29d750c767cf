"""`walras plan mixes`: the menu of accelerator mixes for one large training job, from measured layers."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.arguments import OutputOption, read_document
from walras.cli.terminal_output import (
    Column,
    Listing,
    OutputFormat,
    ends_at_interrupt,
    show_json,
    show_line,
    show_listing,
)
from walras.contract import SECONDS_PER_HOUR
from walras.errors import UserError
from walras.units import format_money

if TYPE_CHECKING:
    from optimizer.planning.layer_profiles import ModelProfile
    from optimizer.planning.mixed_plans import MixedPlan
    from walras.spec.layer_profile_file import LayerProfileFile

_MOST_OFFERED = 4096
_GIB = 2**30


@ends_at_interrupt
def plan_mixes_command(
    file: Annotated[
        Path, typer.Argument(metavar="PROFILE", help="JSON file of measured layers, their sizes and links.")
    ],
    offer: Annotated[
        list[str],
        typer.Option("--offer", metavar="TYPE=N", help="Accelerators of one type that there are; give one or two."),
    ],
    multiple: Annotated[
        int, typer.Option("--multiple", min=1, max=64, help="Count accelerators of a type in multiples of this.")
    ] = 1,
    within: Annotated[
        float,
        typer.Option(
            "--within", min=0, max=0.5, help="Leave out mixes that a smaller one serves but for this part of the speed."
        ),
    ] = 0.0,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the menu as a problem file of `walras solve`.")
    ] = None,
    plans: Annotated[
        Path | None, typer.Option("--plans", metavar="FILE", help="Write the menu as `plans:` of a job file.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Plan one training job over a mix of two types: every useful pair of counts. Needs no server."""
    from optimizer.planning.mixed_plans import plan_mixes, thinned
    from walras.spec.layer_profile_file import LayerProfileFile

    given = read_document(file, LayerProfileFile)
    offered = _read_offers(offer, given, file)
    counts = [count // multiple * multiple for count in (*offered.values(), 0)]
    found = plan_mixes(model_profile(given, list(offered)), (counts[0], counts[1]))
    menu = thinned(found, multiple, within)
    if not menu:
        raise UserError(
            f"no plan of {given.model.name} fits on {', '.join(offer)}", field="--offer", fix="offer more accelerators"
        )
    usd = [given.usd_per_gpu_hour.get(name) for name in offered]
    if out is not None:
        out.write_text(json.dumps(_problem(menu, given, offered), indent=1) + "\n", encoding="utf-8")
    if plans is not None:
        _write_plans(plans, menu, list(offered))
    if output is OutputFormat.JSON:
        show_json({"types": list(offered), "found": len(found), "menu": [_plan_data(plan, usd) for plan in menu]})
        return
    _show_menu(menu, list(offered), usd)
    show_line(f"{len(found)} pairs of counts are useful; {len(menu)} are shown.")
    if out is not None:
        show_line(f"Wrote {out}: walras solve {out} --policy walras --check")
    if plans is not None:
        show_line(f"Wrote {plans}: it stands in a job file beside `run`.")


def _read_offers(texts: list[str], given: "LayerProfileFile", file: Path) -> dict[str, int]:
    """Returns the accelerators by type. Raises UserError for text that is no offer of a measured type."""
    found: dict[str, int] = {}
    for text in texts:
        name, _, count = text.partition("=")
        if not (count.isascii() and count.isdigit() and 1 <= int(count[:9]) <= _MOST_OFFERED):
            raise UserError(f"{text[:100]!r} is no offer", field="--offer", fix=f"TYPE=N with N in 1..{_MOST_OFFERED}")
        if name not in given.profiles or name not in given.gpu_memory_gb or name not in given.links:
            known = ", ".join(sorted(set(given.profiles) & set(given.gpu_memory_gb) & set(given.links)))
            raise UserError(f"{file} measured no {name[:100]!r}", field="--offer", fix=f"one of {known}")
        found[name] = int(count)
    if not 1 <= len(found) <= 2 or len(found) < len(texts):
        raise UserError("a mix has one type or two", field="--offer", fix="give each once, such as --offer a100=8")
    return found


def model_profile(given: "LayerProfileFile", names: list[str]) -> "ModelProfile":
    """Returns what the planner needs of these types, from the file."""
    import numpy as np

    from optimizer.planning.layer_profiles import LayerSizes, Link, ModelProfile, TypeProfile

    types = []
    for name in names:
        passes, updates = {}, {}
        for samples, by_degree in given.profiles[name].items():
            for degree, rows in by_degree.items():
                forward, backward, update = np.array(rows).T
                passes[samples, degree] = forward + backward
                updates[samples, degree] = float(update.sum())
        types.append(TypeProfile(name, given.gpu_memory_gb[name] * _GIB, passes, updates))
    sizes = {
        degree: LayerSizes(
            np.array([row.params_bytes for row in rows]),
            np.array([row.act_mem_bytes for row in rows]),
            np.array([row.act_output_bytes for row in rows]),
        )
        for degree, rows in given.layer_sizes.items()
    }
    links = {
        (sender, has, receiver, there): Link(tuple(link.polynomial), link.max_bytes_per_s)
        for sender, by_count in given.links.items()
        for has, receivers in by_count.items()
        for receiver, by_there in receivers.items()
        for there, link in by_there.items()
    }
    return ModelProfile(given.model.global_batch_size, sizes, tuple(types), links)


def _write_plans(path: Path, menu: "list[MixedPlan]", names: list[str]) -> None:
    """Writes the menu as a job file has it. Raises UserError for a menu that no job file may have."""
    from walras.spec.plan_menus import PLANS_MOST
    from walras.spec.text_formats import dump_yaml

    if len(menu) > PLANS_MOST:
        raise UserError(
            f"{len(menu)} mixes are more than the {PLANS_MOST} plans that a job may have",
            field="--plans",
            fix="thin the menu: --multiple 8 counts whole machines, --within 0.05 leaves out what gains little",
        )
    entries = [
        {
            "accelerators": {name: count for name, count in zip(names, plan.accelerators, strict=False) if count},
            "steps_per_s": plan.steps_per_s,
        }
        for plan in menu
    ]
    path.write_text(dump_yaml({"plans": entries}), encoding="utf-8")


def _problem(menu: "list[MixedPlan]", given: "LayerProfileFile", offered: dict[str, int]) -> dict[str, Any]:
    """Returns the menu as the only job of a problem, in pools named as the types."""
    pools = {}
    for name, count in offered.items():
        price = given.usd_per_gpu_hour.get(name)
        pools[name] = {"capacity": count} | ({} if price is None else {"usd_per_h": price})
    configurations = [
        {
            "uses": {name: count for name, count in zip(offered, plan.accelerators, strict=False) if count},
            "steps_per_s": plan.steps_per_s,
        }
        for plan in menu
    ]
    job = {"id": 1, "name": given.model.name, "configurations": configurations}
    return {"schema_version": 1, "pools": pools, "jobs": [job]}


def _plan_data(plan: "MixedPlan", usd: list[float | None]) -> dict[str, Any]:
    return {
        "accelerators": list(plan.accelerators[: len(usd)]),
        "steps_per_s": plan.steps_per_s,
        "usd_per_step": _usd_per_step(plan, usd),
        "micro_batch": plan.micro_batch,
        "stages": [
            {"layers": each.layers, "replicas": list(each.replicas), "degrees": list(each.degrees)}
            for each in plan.stages
        ],
    }


def _usd_per_step(plan: "MixedPlan", usd: list[float | None]) -> float | None:
    priced = [count * price for count, price in zip(plan.accelerators, usd, strict=False) if price is not None]
    return sum(priced) / SECONDS_PER_HOUR / plan.steps_per_s if None not in usd else None


def _show_menu(menu: "list[MixedPlan]", names: list[str], usd: list[float | None]) -> None:
    columns = [
        *(Column(name.upper(), right=True) for name in names),
        Column("STEPS/S", right=True),
        Column("USD/STEP", right=True),
        Column("MICRO-BATCH", right=True),
        Column("STAGES", shrinks=True),
    ]
    rows = []
    for plan in menu:
        price = _usd_per_step(plan, usd)
        rows.append(
            [
                *(str(count) for count in plan.accelerators[: len(names)]),
                f"{plan.steps_per_s:.4g}",
                "-" if price is None else format_money(price),
                str(plan.micro_batch),
                _stages_text(plan),
            ]
        )
    show_listing(Listing(columns, rows, None), OutputFormat.TABLE)
    show_line("STAGES: layers of each, and on each type replicas x accelerators of a replica.")


def _stages_text(plan: "MixedPlan") -> str:
    """Returns the stages as text, such as `13: 20x1 | 13: 6x1 + 14x4`."""
    texts = []
    for stage in plan.stages:
        parts = [
            f"{replicas}x{degree}" for replicas, degree in zip(stage.replicas, stage.degrees, strict=True) if replicas
        ]
        texts.append(f"{stage.layers}: {' + '.join(parts)}")
    return " | ".join(texts)
