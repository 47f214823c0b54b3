"""Charts of bars and of lines as SVG, written by hand: small, without scripts, legible on light and on dark pages."""

import math
from html import escape

# Five colours that differ on white and on black, also for the colour-blind.
COLOURS = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677")
STYLE = """\
  text { font: 12px sans-serif; fill: #24292f }
  .title { font-weight: bold }
  .small { font-size: 10px }
  .grid { stroke: #24292f; stroke-opacity: .15 }
  .span { fill: #24292f; fill-opacity: .06 }
  .one { stroke: #24292f; stroke-opacity: .6 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .grid, .one { stroke: #e6edf3 }
    .span { fill: #e6edf3 }
  }"""

WIDTH, PANEL_HEIGHT, MARGIN, TOP = 880, 190, 34, 46


def text(x, y, content, anchor="middle", kind=""):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{kind and f" class={chr(34)}{kind}{chr(34)}"}>{escape(content)}</text>'


def legend(names):
    """The legend: one line."""
    at = MARGIN
    for name, colour in zip(names, COLOURS):
        yield f'<rect x="{at}" y="12" width="12" height="12" fill="{colour}"/>'
        yield text(at + 17, 22, name, "start")
        at += 40 + 7 * len(name)


def panel(x, y, width, height, title, groups, names, ceiling):
    """`groups`: (label, note under it, values); a value above the ceiling is drawn as high as that."""
    yield text(x + width / 2, y - 6, title, kind="title")
    for step in range(round(ceiling * 4) + 1):
        line = y + height - step / 4 / ceiling * height
        yield f'<path d="M{x:.0f} {line:.1f}h{width:.0f}" class="{"one" if step in (0, 4) else "grid"}"/>'
        if step % 2 == 0:
            yield text(x - 5, line + 4, f"{step / 4:.1f}", "end", "small")
    yield from beside_each_other(x, y, width, height, groups, names, lambda value: min(value, ceiling) / ceiling * height, 2)


def beside_each_other(x, y, width, height, groups, names, tall, digits):
    """The bars of a panel, each as tall as its value says, and what is written under the groups."""
    room = width / len(groups)
    bar = room * 0.8 / len(names)
    for number, (label, note, values) in enumerate(groups):
        left = x + room * (number + 0.1)
        for place, (name, colour, value) in enumerate(zip(names, COLOURS, values)):
            up = tall(value)
            yield (f'<rect x="{left + place * bar:.1f}" y="{y + height - up:.1f}" width="{bar - 1:.1f}" height="{up:.1f}"'
                   f' fill="{colour}"><title>{escape(f"{name}: {value:.{digits}f}")}</title></rect>')
        yield text(left + room * 0.4, y + height + 14, label)
        yield text(left + room * 0.4, y + height + 26, note, kind="small")


def bars(description, names, panels, columns=2, ceiling=1.25):
    """A chart of panels (title, groups), side by side in columns; each group has a bar for each of `names`."""
    def draw(place, panel_of):
        return panel(*place, *panel_of, names, ceiling)
    return drawing(description, names, panels, columns, MARGIN, draw)


def log_panel(x, y, width, height, title, groups, names, decades):
    """As `panel`, but bars begin at 1, and each power of ten is as high as the one before."""
    def up(value):
        return min(max(math.log10(value), 0), decades) / decades * height
    yield text(x + width / 2, y - 6, title, kind="title")
    for power in range(decades + 1):
        line = y + height - power / decades * height
        yield f'<path d="M{x:.0f} {line:.1f}h{width:.0f}" class="{"grid" if power else "one"}"/>'
        yield text(x - 5, line + 4, f"{10 ** power}", "end", "small")
    yield from beside_each_other(x, y, width, height, groups, names, up, 1)


def log_bars(description, names, panels, columns=2):
    """A chart as of `bars`, of values from 1 on, by powers of ten."""
    most = max(value for _, groups in panels for _, _, values in groups for value in values)
    decades = max(math.ceil(math.log10(most)), 1)
    return drawing(description, names, panels, columns, MARGIN,
                   lambda place, one: log_panel(*place, *one, names, decades))


def drawing(description, names, panels, columns, margin, draw):
    """The picture: `draw(place, panel)` for each of the panels, side by side in columns."""
    pitch = PANEL_HEIGHT + 64
    height = TOP + -(-len(panels) // columns) * pitch
    width = (WIDTH - margin * (columns + 1)) / columns
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
        f"<title>{escape(description)}</title>", f"<style>\n{STYLE}\n</style>", *legend(names),
    ]
    for number, one in enumerate(panels):
        row, column = divmod(number, columns)
        parts += draw((margin + column * (width + margin), TOP + 16 + row * pitch, width, PANEL_HEIGHT), one)
    return "\n".join([*parts, "</svg>", ""])


def scale(most):
    """A step for the lines of a grid up to `most`, four to eight of them: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(most / 4))
    return next(step * power for step in (1, 2, 5, 10) if most / (step * power) <= 8)


def line_panel(x, y, width, height, title, series, spans, names):
    """`series`: for each of the names points (x, y), or `None`; `spans`: (from, to) that are shaded."""
    points = [point for line in series for point in line or ()]
    right, top = max(at for at, _ in points), max(max(of for _, of in points), 1e-9)
    step, across = scale(top), scale(right)
    top = math.ceil(top / step) * step
    yield text(x + width / 2, y - 6, title, kind="title")
    for begin, end in spans:
        yield (f'<rect x="{x + begin / right * width:.1f}" y="{y}" width="{(min(end, right) - begin) / right * width:.1f}"'
               f' height="{height}" class="span"/>')
    for number in range(round(top / step) + 1):
        line = y + height - number * step / top * height
        yield f'<path d="M{x:.0f} {line:.1f}h{width:.0f}" class="{"grid" if number else "one"}"/>'
        yield text(x - 5, line + 4, f"{number * step:,.10g}", "end", "small")
    for number in range(int(right / across) + 1):
        yield text(x + number * across / right * width, y + height + 14, f"{number * across:.10g}", kind="small")
    yield text(x + width / 2, y + height + 28, "seconds", kind="small")
    for name, colour, line in zip(names, COLOURS, series):
        if line:
            path = "L".join(f"{x + at / right * width:.1f} {y + height - of / top * height:.1f}" for at, of in line)
            yield f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.5"><title>{escape(name)}</title></path>'


def lines(description, names, panels):
    """A chart of panels (title, series, spans), one below the other, over seconds."""
    return drawing(description, names, panels, 1, 56, lambda place, one: line_panel(*place, *one, names))
