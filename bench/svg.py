"""Two kinds of picture, written by hand: horizontal bars, and lines over a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH = 860
LABELS = 330
"""Pixels for the names on the left."""

GLYPH = 6.6
"""Pixels for a letter of the words behind a bar."""

ROW = 26
COLOURS = ("#4c78a8", "#e07b39", "#54a24b", "#b279a2", "#9d755d", "#76b7b2")
GREY, INK, RED = "#c9ccd1", "#222222", "#d62728"

DARK = """<style>@media (prefers-color-scheme: dark) {
.page { fill: #0d1117 } text { fill: #e6edf3 } .ink { stroke: #e6edf3 }
rect.base { fill: #57606a } line.base, polyline.base { stroke: #414850 } circle.base { fill: #414850 }
}</style>"""
"""What a reader with a dark screen sees in place of white and black."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    """The ends of the whisker; None: no whisker."""

    limit: float | None = None
    """Drawn as a red mark."""

    is_base: bool = False
    """Drawn in grey: what the others are compared with."""

    text: str | None = None
    """What stands at the end of the bar; None: the value."""


def _text(
    x: float, y: float, words: str, *, size: int = 12, anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
    return f"<text {place}{weight}>{escape(words)}</text>"


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1, dashes: str = "") -> str:
    kind = {INK: ' class="ink"', GREY: ' class="base"'}.get(colour, "")
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{colour}" stroke-width="{width}"{dashes}{kind}/>'
    )


def _page(height: float, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'font-family="system-ui, sans-serif" fill="{INK}">'
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="#ffffff" class="page"/>'
    )
    return "\n".join([head, DARK, *parts, "</svg>"]) + "\n"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def bars(
    title: str, unit: str, groups: Sequence[tuple[str, Sequence[Bar]]], *, one_scale: bool = False
) -> str:
    """Draws groups of bars, on one scale or each group on a scale of its own, from zero."""
    parts = [_text(16, 26, title, size=16, bold=True), _text(16, 45, unit, size=11)]
    y = 66.0
    for name, rows in groups:
        together = [row for _, rows in groups for row in rows] if one_scale else rows
        top = max(max(row.value, row.limit or 0, row.high or 0) for row in together) * 1.05 or 1
        longest = max(len(row.text or "0.000") for row in together)
        scale = (WIDTH - LABELS - 24 - GLYPH * longest) / top
        parts.append(_text(16, y + 8, name, size=13, bold=True))
        y += 18
        for row in rows:
            middle = y + ROW / 2
            end = LABELS + row.value * scale
            fill = f'{GREY}" class="base' if row.is_base else COLOURS[0]
            parts.append(_text(LABELS - 8, middle + 4, row.label, anchor="end"))
            parts.append(
                f'<rect x="{LABELS}" y="{y + 4:.1f}" width="{max(end - LABELS, 1):.1f}" '
                f'height="{ROW - 8}" fill="{fill}"/>'
            )
            if row.low is not None and row.high is not None:
                low, high = LABELS + row.low * scale, LABELS + row.high * scale
                parts.append(_line(low, middle, high, middle, INK, 1.2))
                parts += [_line(x, middle - 4, x, middle + 4, INK, 1.2) for x in (low, high)]
                end = max(end, high)
            if row.limit is not None:
                x = LABELS + row.limit * scale
                parts.append(_line(x, y + 1, x, y + ROW - 1, RED, 2))
                end = max(end, x)
            parts.append(_text(end + 6, middle + 4, row.text or _number(row.value)))
            y += ROW
        y += 14
    return _page(y + 4, parts)


@dataclass(frozen=True, slots=True)
class Line:
    """One line, by its points."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 0
    """Which of the colours."""

    is_base: bool = False
    """Drawn wide and in grey: what the others are compared with."""

    is_dashed: bool = False

    @property
    def ink(self) -> str:
        return GREY if self.is_base else COLOURS[self.colour % len(COLOURS)]

    @property
    def width(self) -> float:
        return 7 if self.is_base else 2

    @property
    def dashes(self) -> str:
        return ' stroke-dasharray="6 4"' if self.is_dashed else ""


def lines(title: str, x_name: str, y_name: str, drawn: Sequence[Line]) -> str:
    """Draws lines on two logarithmic axes."""
    left, top, width, height = 80.0, 60.0, WIDTH - 350.0, 320.0
    points = [point for line in drawn for point in line.points]
    x_low, x_high = (pick(math.log10(x) for x, _ in points) for pick in (min, max))
    y_low = math.floor(min(math.log10(y) for _, y in points))
    y_high = math.ceil(max(math.log10(y) for _, y in points))
    x_span, y_span = (x_high - x_low) or 1, (y_high - y_low) or 1

    def at(x: float, y: float) -> tuple[float, float]:
        across, up = (math.log10(x) - x_low) / x_span, (math.log10(y) - y_low) / y_span
        return left + across * width, top + height - up * height

    parts = [_text(16, 26, title, size=16, bold=True), _text(16, 45, y_name, size=11)]
    for power in range(y_low, y_high + 1):
        _, y = at(points[0][0], 10.0**power)
        parts += [
            _line(left, y, left + width, y, GREY),
            _text(left - 6, y + 4, f"{10.0**power:,g}", anchor="end"),
        ]
    room = -100.0
    for x in sorted({x for x, _ in points}):
        place, _ = at(x, 10.0**y_low)
        parts.append(_line(place, top + height, place, top + height + 5, INK))
        if place - room > 40:
            parts.append(_text(place, top + height + 20, f"{x:,g}", anchor="middle", size=11))
            room = place
    parts.append(_text(left + width / 2, top + height + 40, x_name, anchor="middle"))
    for index, line in enumerate(drawn):
        kind = ' class="base"' if line.is_base else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in line.points))
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{line.ink}" '
            f'stroke-width="{line.width}"{line.dashes}{kind}/>'
        )
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{line.ink}"{kind}/>'
            for x, y in (at(*point) for point in line.points)
        ]
        y = top + 14 + 20 * index
        parts += [
            _line(left + width + 16, y - 4, left + width + 40, y - 4, line.ink, line.width, line.dashes),
            _text(left + width + 46, y, line.name),
        ]
    return _page(top + height + 56, parts)
