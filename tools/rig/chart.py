"""Bar charts as SVG, written by hand: small, without scripts, legible on light and on dark pages."""

from html import escape

# Five colours that are told apart on white and on black, also by those who see few colours.
COLOURS = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677")
STYLE = """\
  text { font: 12px sans-serif; fill: #24292f }
  .title { font-weight: bold }
  .small { font-size: 10px }
  .grid { stroke: #24292f; stroke-opacity: .15 }
  .one { stroke: #24292f; stroke-opacity: .6 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .grid, .one { stroke: #e6edf3 }
  }"""

WIDTH, PANEL_HEIGHT, MARGIN, TOP = 880, 190, 34, 46


def text(x, y, content, anchor="middle", kind=""):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{kind and f" class={chr(34)}{kind}{chr(34)}"}>{escape(content)}</text>'


def legend(names):
    """A line of what the colours mean."""
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
    room = width / len(groups)
    bar = room * 0.8 / len(names)
    for number, (label, note, values) in enumerate(groups):
        left = x + room * (number + 0.1)
        for place, (name, colour, value) in enumerate(zip(names, COLOURS, values)):
            tall = min(value, ceiling) / ceiling * height
            yield (f'<rect x="{left + place * bar:.1f}" y="{y + height - tall:.1f}" width="{bar - 1:.1f}" height="{tall:.1f}"'
                   f' fill="{colour}"><title>{escape(f"{name}: {value:.2f}")}</title></rect>')
        yield text(left + room * 0.4, y + height + 14, label)
        yield text(left + room * 0.4, y + height + 26, note, kind="small")


def bars(description, names, panels, columns=2, ceiling=1.25):
    """A chart of panels (title, groups), side by side in columns; each group has a bar for each of `names`."""
    rows = -(-len(panels) // columns)
    pitch = PANEL_HEIGHT + 64
    height = TOP + rows * pitch
    width = (WIDTH - MARGIN * (columns + 1)) / columns
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
        f"<title>{escape(description)}</title>", f"<style>\n{STYLE}\n</style>", *legend(names),
    ]
    for number, (title, groups) in enumerate(panels):
        row, column = divmod(number, columns)
        lines += panel(MARGIN + column * (width + MARGIN), TOP + 16 + row * pitch, width, PANEL_HEIGHT, title, groups, names, ceiling)
    return "\n".join([*lines, "</svg>", ""])
