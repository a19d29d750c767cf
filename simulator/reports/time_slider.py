"""The slider of a comparison's page: the state of every policy at one time, side by side.

The page stays one file that needs no network. Its data are JSON inside the page, where nothing is markup, and the
content security policy allows its one script only by hash (`walras.html_page`).
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from simulator.reports.figure_book import FigureSetting
from simulator.reports.run_detail import LevelCurve, RunLevels

#: Largest number of policies side by side; the others are only in the charts.
_POLICIES_MOST = 8
#: Digits of levels and instants, of which the page has thousands.
_DIGITS = 6
_HEADING = "At one time"
_CAPTION = (
    "Move the slider (arrow keys, Page Up and Down, Home and End), or go from change to change. A cell is an"
    " accelerator in the colour of its job; jobs by number, with how many accelerators they hold there. First seed."
)
_WITHOUT = "This part of the page needs its script, which this browser does not run."


@cache
def slider_script() -> str:
    """Returns the script that moves every slider of a page."""
    return files("simulator.reports").joinpath("time_slider.js").read_text(encoding="utf-8")


def slider_words() -> tuple[str, str]:
    """Returns the heading and the caption."""
    return _HEADING, _CAPTION


def slider_html(setting: FigureSetting) -> str:
    """Returns the slider of a setting, as markup; empty where no policy has levels over time."""
    data = slider_data(setting)
    if data is None:
        return ""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    # Inside a script element only the start of another tag, or of a comment, could be read as markup.
    text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return (
        f'<noscript><p>{_WITHOUT}</p></noscript><div class="time-slider">'
        f'<script type="application/json">{text}</script></div>'
    )


def slider_data(setting: FigureSetting) -> dict[str, Any] | None:
    """Returns the script's data: the levels and attempts of every policy, in seconds; None if no policy has any."""
    policies = [
        _policy(each.policy, each.levels) for each in setting.policies if each.levels and each.levels.ended_at > 0
    ][:_POLICIES_MOST]
    return {"until": max(each["until"] for each in policies), "policies": policies} if policies else None


def _policy(name: str, levels: RunLevels) -> dict[str, Any]:
    curves: Mapping[str, Mapping[str, LevelCurve]] = {
        "there": levels.there,
        "held": levels.held,
        "price": levels.price,
        "usd_per_h": levels.usd_per_h,
    }
    pools: dict[str, dict[str, Any]] = {
        pool: {kind: _curve(of_pool[pool]) for kind, of_pool in curves.items() if pool in of_pool}
        for pool in sorted(levels.there)
    }
    for pool, attempts in levels.attempts.items():
        rows = [(job, count, _short(start), _short(end)) for job, count, start, end in attempts]
        pools.setdefault(pool, {})["attempts"] = rows
    return {
        "name": name,
        "until": levels.ended_at,
        "named_until": levels.attempts_until,
        "unit": levels.price_unit,
        "waiting": _curve(levels.waiting),
        "pools": pools,
    }


def _curve(curve: LevelCurve) -> tuple[list[float], list[float]]:
    return [_short(at) for at in curve.at], [_short(value) for value in curve.value]


def _short(value: float) -> float:
    """Rounds seconds to thousandths and levels to six digits, because invisible digits would be most of the page."""
    return round(float(value), 3) if abs(value) >= 1.0 else float(f"{value:.{_DIGITS}g}")
