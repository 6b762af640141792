"""Draw docs/architecture.svg, the packages with their imports and the life cycle of a run, for `make architecture`.

An arrow from A to B says that A imports B. Arrows that follow from others are left out; an arrow that points up is red.
"""

from html import escape
from itertools import pairwise
from pathlib import Path

from docs.read_imports import SIDES, Edges, find_package_imports, list_package_files, read_sources, reduce_edges

OUTPUT = Path(__file__).with_name("architecture.svg")
ABOUT = {
    "common/cluster": "who takes part, how processes start and stop",
    "common/run": "the run directory: rows, summary, checkpoints, resume",
    "common/training": "the loop, the interface of a strategy, the schedule",
    "common/models": "names, shapes and initial weights, alike on both sides",
    "common/data": "examples, cache, batch plan, global batches",
    "common/config": "what a run is: schemas, limits, composition",
    "common/errors.py": "errors that a user can fix",
    "torch_impl": "PyTorch's side",
    "tf_impl": "TensorFlow's side",
    "common/bench": "contestants in turns",
    "common/compare": "runs to a verdict",
    "common/profile": "traces of profiled steps",
    "common/records": "readers of a run's files",
    "common/recording": "records of scripts",
    "common/report": "a verdict to pages and pictures",
    "common/console.py": "the command lockstep",
    "common/hardware.py": "this machine",
    "common/versions.py": "versions of packages",
    "common/interpreter.py": "checks other environments",
    "common/interpreter_probe.py": "runs in them",
    "common/map": "pairs, and their proof",
    "common/output.py": "closed output",
    "common/run_module.py": "starts our processes",
    "common/terminal.py": "safe output",
    "commands": "python -m common.NAME",
}
SPINE = list(ABOUT)[:7]  # the layers of common from the top; the other packages of common are drawn beside them
STEPS = [
    ("command", "python -m torch_impl.train strategy=ddp"),
    ("discover the cluster", "an engine: hosts, this node, its ranks"),
    ("resolve the config", "once; frozen from here on"),
    ("prepare", "once per host: cache, weights, checkpoint"),
    ("launcher", "starts, supervises and stops the ranks"),
]
OUTCOME = [
    ("observers", "are notified by the chief's loop"),
    ("run directory", "config, rows, summary, checkpoints"),
    ("compare", "several runs: verdict, tables, report"),
]
LEFT, SPINE_X, SPINE_END, BESIDE_X, BESIDE_END, END = 24, 60, 664, 724, 1040, 1100  # x coordinates, in pixels
# A lane is a vertical strip of the picture without boxes, in which arrows run up and down: its two ends on the x-axis.
LANES = {"left": (SPINE_X, LEFT), "middle": (SPINE_END, BESIDE_X), "right": (BESIDE_END, END - LEFT)}
INK, GREY, RED, BLUE, GREEN, SAND, PALE = "#1f2937", "#64748b", "#c81e1e", "#e3edfd", "#e4f5ea", "#fdf1dc", "#f1f5f9"
HEADS = "".join(
    f'<marker id="{colour[1:]}" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="9" markerHeight="9" '
    f'markerUnits="userSpaceOnUse" orient="auto-start-reverse"><path d="M0,0 L8,4 L0,8 z" fill="{colour}"/></marker>'
    for colour in (GREY, RED)
)


class Drawing(list[str]):
    """The lines of an SVG file."""

    def text(self, x: float, y: float, words: str, size: int = 13, fill: str = GREY, more: str = "") -> None:
        self.append(f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}"{more}>{escape(words)}</text>')

    def heading(self, x: float, y: float, words: str, size: int = 15, about: str = "") -> None:
        title = f'<tspan font-weight="bold" fill="{INK}">{escape(words)}</tspan>'
        more = f'<tspan dx="12" font-size="13" fill="{GREY}">{escape(about)}</tspan>'
        self.append(f'<text x="{x:g}" y="{y:g}" font-size="{size}">{title}{more}</text>')

    def box(self, x: float, y: float, width: float, height: float, fill: str, stroke: str = "#94a3b8") -> None:
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        self.append(f'<rect {place} rx="6" fill="{fill}" stroke="{stroke}"/>')

    def arrow(self, *points: tuple[float, float], colour: str = GREY, more: str = "") -> None:
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        style = f'fill="none" stroke="{colour}" stroke-width="1.5" marker-end="url({colour})"{more}'
        self.append(f'<polyline points="{path}" {style}/>')

    def stack(self, x: float, y: float, width: float, gap: float, steps: list[tuple[str, str]], fill: str) -> None:
        """Draw boxes one below the other, with arrows between them."""
        for index, (title, about) in enumerate(steps):
            top = y + (50 + gap) * index
            self.box(x, top, width, 50, fill)
            self.heading(x + 12, top + 20, title)
            self.text(x + 12, top + 39, about)
            if index:
                self.arrow((x + width / 2, top - gap), (x + width / 2, top))

    def package(
        self, name: str, files: list[str], x: float, y: float, width: float, fill: str, high: float = 0
    ) -> float:
        """Draw a box with the names of a package's files, at least `high` pixels high; return its height."""
        words, height = place_words(files, width)
        self.box(x, y, width, max(height, high), fill)
        self.heading(x + 12, y + 21, name, about=ABOUT.get(name, ""))
        for left, top, size, word in words:
            if not word.endswith("/"):
                self.box(x + left, y + top, size, 20, "white", "#cbd5e1")
            self.text(x + left + 6, y + top + 14, word, 12, INK, ' font-family="monospace"')
        return height


def place_words(names: list[str], width: float) -> tuple[list[tuple[float, float, float, str]], float]:
    """Place the names of folders and files in a box. Return (x, y, width, word) of each, and the height of the box."""
    words: list[tuple[float, float, float, str]] = []
    left, top, last, indent = 12.0, 32.0, "", 12.0
    for folder, file in sorted(("/".join(name.split("/")[:-1]), name.split("/")[-1]) for name in names):
        for word in [file] if folder == last else [f"{folder}/", file]:
            size, is_folder = 7.23 * len(word) + 12, word != file
            if words and (is_folder or left + size > width - 8):
                left, top = 12.0 if is_folder else indent, top + 25
            words.append((left, top, size, word))
            left += size + 6
            last, indent = folder, left if is_folder else indent
    return words, top + 30 if words else 34.0


def draw_packages(draw: Drawing, y: float) -> float:
    """Draw the packages and the imports between them from y down; return the y of their end."""
    sources = read_sources()
    files, edges = list_package_files(sources), find_package_imports(sources)
    high = max(place_words(files[side], 505)[1] for side in SIDES)
    draw.box(LEFT, y, END - 2 * LEFT, high + 48, PALE)
    draw.text(LEFT + 14, y + 22, "the two sides: the same files, the same functions, the same signatures")
    for side, x in zip(SIDES, (LEFT + 14, END - LEFT - 14 - 505), strict=True):
        draw.package(side, files[side], x, y + 34, 505, GREEN, high)
    place = {"sides": (y, y + high + 48)}
    y += high + 82
    for name in SPINE:
        place[name] = (y, y + draw.package(name, files[name], SPINE_X, y, SPINE_END - SPINE_X, BLUE))
        y = place[name][1] + 30

    def layer_above(name: str) -> float:
        """Return the top of the layer just above all layers that a package beside them imports."""
        highest = min((place[b][0] for a, b in edges if a == name and b in SPINE), default=y)
        return max((place[layer][0] for layer in SPINE if place[layer][0] < highest), default=highest - 12)

    free_from = 0.0  # the y below which nothing is drawn beside the layers yet
    for name in sorted(files.keys() - {*SPINE, *SIDES}, key=lambda name: (layer_above(name), name)):
        top = max(layer_above(name), free_from)
        place[name] = (top, top + draw.package(name, files[name], BESIDE_X, top, BESIDE_END - BESIDE_X, SAND))
        free_from = place[name][1] + 16
    draw_imports(draw, edges, place)
    return max(bottom for _, bottom in place.values())


def draw_imports(draw: Drawing, edges: Edges, place: dict[str, tuple[float, float]]) -> None:
    """Draw an arrow for each import that does not follow from others; `place` has the top and bottom of each package.

    Arrows between neighbouring layers are straight. The others run in a lane, each at its own x.
    """
    down = {(a, b) for a, b in edges if place[a][0] < place[b][0]}
    neighbours = (reduce_edges(down) | edges - down) & {*pairwise(["sides", *SPINE])}
    for a, b in sorted(neighbours):
        draw.arrow(*(((SPINE_X + SPINE_END) / 2, y) for y in (place[a][1], place[b][0])))
    others = sorted((reduce_edges(down) | edges - down) - neighbours, key=lambda edge: (place[edge[0]], place[edge[1]]))

    def end_of(edge: tuple[str, str], name: str, lane: str, x: float) -> list[tuple[float, float]]:
        """Return the points at which an arrow at x of a lane leaves or reaches the box of a package.

        The ends of arrows at one box are ordered by the places of the packages at their other ends.
        """
        top, bottom = place[name]
        if name == "sides":
            return [(x, bottom)]
        ends = sorted((other for other in others if name in other), key=lambda other: place[other[other[0] == name]])
        y = top + (bottom - top) * (ends.index(edge) + 1) / (len(ends) + 1)
        return [(x, y), (LANES[lane][lane == "middle" and name not in SPINE], y)]

    for lane, (first, last) in LANES.items():
        lanes = {
            edge: "middle" if "sides" not in edge else "left" if {*edge} & {*SPINE} else "right" for edge in others
        }
        lane_edges = [edge for edge in others if lanes[edge] == lane]
        for index, edge in enumerate(lane_edges, 2):
            x = first + (last - first) * index / (len(lane_edges) + 3)
            start, end = (end_of(edge, name, lane, x) for name in edge)
            draw.arrow(*reversed(start), *end, colour=GREY if edge in down else RED)


def draw_run(draw: Drawing, y: float) -> float:
    """Draw the life cycle of a run from y down; return the y of its end."""
    draw.stack(LEFT, y, 300, 24, STEPS, BLUE)
    draw.stack(826, y + 25, 250, 48, OUTCOME, SAND)
    for title, top in (("rank 0, the chief", y), ("rank 1", y + 123), ("rank 2 ...", y + 246)):
        draw.box(400, top, 380, 100, GREEN)
        draw.heading(412, top + 22, title)
        draw.text(412, top + 88, "opens the prepared inputs")
        for left, word in ((412, "rendezvous"), (543, "strategy"), (674, "loop")):
            draw.box(left, top + 34, 94, 32, "white")
            draw.text(left + 47, top + 55, word, 14, INK, ' text-anchor="middle"')
        for left in (506, 637):
            draw.arrow((left, top + 50), (left + 37, top + 50))
        if top > y:
            draw.arrow((590, top - 57), (590, top + 34), more=f' marker-start="url(#{GREY[1:]})"')
            draw.text(602, top - 7, "gradients")
        draw.arrow((LEFT + 300, y + 321), (362, y + 321), (362, top + 50), (400, top + 50))
    draw.arrow((768, y + 50), (826, y + 50))
    return y + 346


def draw() -> str:
    """Return the text of docs/architecture.svg."""
    drawing = Drawing()
    drawing.heading(LEFT, 36, "The packages and their imports", 20)
    bottom = draw_packages(drawing, 52)
    drawing.heading(LEFT, bottom + 58, "The life cycle of a run", 20)
    height = draw_run(drawing, bottom + 76) + 24
    size = f'viewBox="0 0 {END} {height:g}" font-family="Helvetica, Arial, sans-serif"'
    background = f'<defs>{HEADS}</defs><rect width="{END}" height="{height:g}" fill="white"/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', background, *drawing, "</svg>", ""])


if __name__ == "__main__":
    OUTPUT.write_text(draw(), encoding="utf-8")
