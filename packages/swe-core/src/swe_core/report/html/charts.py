"""Charts as inline SVG: drawn by matplotlib, coloured by the style sheet of the page."""

from __future__ import annotations

import io
import math
import re
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from swe_core.system.printable import printable

MAX_POINTS = 400
Colour = Literal["main", "resolved", "unresolved", "error", "cancelled"]
Look = Literal["line", "faint", "dots"]

# matplotlib cannot write CSS variables, so it draws in placeholder colours.
_INK, _GRID = "#010101", "#010102"
_COLOURS: dict[Colour, str] = {
    "main": "#010103",
    "resolved": "#010104",
    "unresolved": "#010105",
    "error": "#010106",
    "cancelled": "#010107",
}
_VARIABLES = {_INK: "var(--ink)", _GRID: "var(--grid)"} | {
    value: f"var(--{name})" for name, value in _COLOURS.items()
}
_STYLE = {
    "svg.fonttype": "none",
    "path.simplify": False,  # a chart has few points, and each is a point of the data
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _INK,
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "font.size": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "text.color": _INK,
    "xtick.color": _GRID,
    "ytick.color": _GRID,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
}
_LOOKS: dict[Look, dict[str, object]] = {
    "line": {"linewidth": 1.4},
    "faint": {"linewidth": 0.8, "alpha": 0.35},
    "dots": {"linestyle": "", "marker": "o", "markersize": 3, "markeredgewidth": 0, "alpha": 0.5},
}
_ROUND = (1, 2, 2.5, 5, 10)
"""Mantissas of the distance between two ticks."""
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """Points of a chart, [N] float64 each, finite."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    label: str = ""
    colour: Colour = "main"
    look: Look = "line"


@dataclass(frozen=True, slots=True, eq=False)
class Chart:
    """One chart.

    Args:
        caption: Explains the numbers, below the chart.
        x_label: Of the horizontal axis.
        lines: None of them: there is only the caption.
        share: Whether y is a share, shown from 0 to 100 %.
    """

    title: str
    caption: str
    x_label: str
    lines: tuple[Line, ...]
    share: bool = False


def thin(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return at most `MAX_POINTS` of the points, in order: the first, the last, and the extremes between.

    The lowest and the highest point of each stretch remain, so that a line loses no spike.
    """
    if len(y) <= MAX_POINTS:
        return x, y
    stretches = np.array_split(np.arange(1, len(y) - 1), MAX_POINTS // 2 - 1)
    extremes = [stretch[0] + pick(y[stretch]) for stretch in stretches for pick in (np.argmin, np.argmax)]
    kept = np.unique([0, *extremes, len(y) - 1])
    return x[kept], y[kept]


def sample(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return at most `MAX_POINTS` of the points, in order, one in every `every_of`."""
    every = every_of(len(y))
    return x[::every], y[::every]


def every_of(count: int) -> int:
    """Return the stride of `sample`."""
    return max(1, math.ceil(count / MAX_POINTS))


def svg(chart: Chart, name: str) -> str:
    """Draw `chart` as an `<svg>` element.

    Args:
        name: Unique in the page; the identifiers inside are derived from it.
    """
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(4.2, 2.1), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        for line in chart.lines:
            x, y = sample(line.x, line.y) if line.look == "dots" else thin(line.x, line.y)
            look = _LOOKS[line.look] if len(x) > 1 else {"marker": "o", **_LOOKS[line.look]}
            axes.plot(x, y, color=_COLOURS[line.colour], label=printable(line.label), gid=line.look, **look)
        whole = all(bool(np.all(line.y == np.rint(line.y))) for line in chart.lines)
        axes.set_xlabel(chart.x_label)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=_ROUND, integer=chart.x_label == "step"))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=_ROUND, integer=whole))
        axes.set_axisbelow(True)
        if chart.share:
            axes.set_ylim(-0.03, 1.03)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        if any(line.label for line in chart.lines):
            axes.legend(loc="upper left")
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata=_NO_METADATA, transparent=True)
    return _inline(file.getvalue(), printable(chart.title), name)


def _inline(text: str, title: str, name: str) -> str:
    """Return matplotlib's file as an element of a page.

    Namespaces, global styles and unused identifiers are removed, and coordinates rounded to a hundredth of a
    point.
    """
    root = ElementTree.fromstring(text)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for key in list(element.attrib):
            value = element.attrib.pop(key)
            key = key.rpartition("}")[2]
            if key == "id" and element.tag == "g":
                if value not in _LOOKS:
                    continue
                key = "class"
            if key == "style":
                value = re.sub(r"font-family: [^;]*;? ?", "", value)
                value = re.sub("#0101[0-9]{2}", lambda colour: _VARIABLES[colour[0]], value)
            if key != "id" and key != "href":
                value = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", value)
            element.set(key, " ".join(value.split()))
        element.tail = None
        if element.tag != "text":
            element.text = None
    for definitions in root.findall("defs"):
        for style in definitions.findall("style"):
            definitions.remove(style)
    for size in ("width", "height", "version"):
        del root.attrib[size]
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title")
    heading = ElementTree.Element("title", id=f"{name}-title")
    heading.text = title
    root.insert(0, heading)
    return ElementTree.tostring(root, encoding="unicode")
