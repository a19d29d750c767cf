"""Writes a chart as an SVG element of a page, or as a file. Matplotlib is imported only when one is drawn.

Text from a trace is never interpreted as mathematics. The SVG element refers to nothing outside itself. Its identifiers
are prefixed with a key, so that several charts can stand on one page. Its lines and letters have the page's own text
colour, so that it is readable on a dark page too.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from walras.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: File types of a plot.
PLOT_ENDINGS = (".png", ".svg", ".pdf")
CHART_HEIGHT_IN = 2.7
_WIDTH_IN, _DOTS_PER_IN = 8.6, 200
_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_BLACK = "#000000"


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of one or several axes, one below the other, and the function that draws it."""

    draw: "Callable[[list[Axes]], None]"
    height_in: float = CHART_HEIGHT_IN
    rows: int = 1


def chart_of(draw: "Callable[[Axes], None]", height_in: float = CHART_HEIGHT_IN) -> Chart:
    """Returns a chart of one axes."""
    return Chart(lambda axes: draw(axes[0]), height_in)


def svg_element(chart: Chart, key: str) -> str:
    """Returns the chart as an element of a page. The same chart and key give the same text."""
    import matplotlib

    with matplotlib.rc_context(_style(key) | {"figure.facecolor": "none", "axes.facecolor": "none"}):
        text = io.StringIO()
        metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        _drawn(chart).savefig(text, format="svg", metadata=metadata, transparent=True)
    return _inline(text.getvalue(), key)


def save_chart(chart: Chart, path: Path, field: str = "out") -> None:
    """Writes the chart as a file, by the path's ending. The same chart gives the same bytes.

    Raises ConfigError that names `field` for another ending, and for a path that cannot be written.
    """
    ending = path.suffix.lower()
    if ending not in PLOT_ENDINGS:
        known = ", ".join(PLOT_ENDINGS)
        raise ConfigError(f"{path}: figures are written as {known}", field=field, fix="change the file's ending")
    import matplotlib

    # Neither date nor program is written, so that equal figures are equal files.
    metadata = {
        ".png": {"Software": None},
        ".svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
        ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    }[ending]
    with matplotlib.rc_context(_style("walras")):
        try:
            _drawn(chart).savefig(path, dpi=_DOTS_PER_IN, metadata=metadata)
        except OSError as error:
            why = error.strerror or str(error)
            raise ConfigError(f"{path}: {why}", field=field, fix="choose another file") from None


def _drawn(chart: Chart) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_IN, chart.height_in), layout="constrained")
    chart.draw(list(figure.subplots(chart.rows, 1, squeeze=False, sharex=True)[:, 0]))
    return figure


def _style(key: str) -> dict[Any, Any]:
    # Names may contain a dollar sign, which would start mathematics.
    return {
        "text.parse_math": False,
        "svg.hashsalt": key,
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }


def _inline(svg: str, key: str) -> str:
    """Returns the chart as an element of a page: without namespaces and metadata, identifiers prefixed with the key."""
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        for child in [child for child in element if child.tag == f"{_SVG}metadata"]:
            element.remove(child)
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        link = element.attrib.pop(_LINK, None)
        if link is not None:
            element.attrib["href"] = link.replace("#", f"#{key}-", 1)
        for name, value in element.attrib.items():
            if name == "id":
                element.attrib[name] = f"{key}-{value}"
            elif "url(#" in value:
                element.attrib[name] = value.replace("url(#", f"url(#{key}-")
            elif name == "style":
                element.attrib[name] = value.replace(_BLACK, "currentColor")
    root.attrib.update({"role": "img", "width": "100%", "fill": "currentColor"})
    root.attrib.pop("height", None)
    return ElementTree.tostring(root, encoding="unicode")
