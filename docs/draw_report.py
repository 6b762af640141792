"""Draw the annotated pictures of docs/report.md with Chromium: parts of the report's page, marked with numbers.

`python -m docs.draw_report` writes the pages of the runs in docs/gallery, and a picture of each.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Page, sync_playwright

from common.compare.__main__ import main as compare

GALLERY, DOCS = Path("docs/gallery"), Path("docs")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1180, 860  # of the window, in pixels
MARGIN = 18  # around the numbered parts, in pixels

# Puts a number at the top right corner of each element, and returns the box around all elements.
ANNOTATE = """(selectors) => {
    const boxes = selectors.map((selector, index) => {
        const box = document.querySelector(selector).getBoundingClientRect();
        const mark = document.createElement("b");
        mark.textContent = index + 1;
        Object.assign(mark.style, {
            position: "absolute", zIndex: 100, width: "26px", height: "26px", borderRadius: "50%",
            background: "#b3261e", color: "white", font: "bold 14px/26px system-ui", textAlign: "center",
            boxShadow: "0 0 0 2px white",
            left: `${box.right + scrollX - 20}px`, top: `${box.top + scrollY - 8}px`,
        });
        document.body.append(mark);
        return box;
    });
    const [left, top] = ["left", "top"].map((side) => Math.min(...boxes.map((box) => box[side])));
    const [right, bottom] = ["right", "bottom"].map((side) => Math.max(...boxes.map((box) => box[side])));
    return { x: left + scrollX, y: top + scrollY, width: right - left, height: bottom - top };
}"""


@dataclass(frozen=True)
class AnnotatedPicture:
    """Picture of parts of the page of one comparison."""

    name: str  # of the file, without ending
    report: str  # directory of the compared runs in docs/gallery
    parts: list[str]  # CSS selectors, numbered in this order
    hover: float | None = None  # position of the pointer on the first plot, as a share of its width


PICTURES = [
    AnnotatedPicture(
        "report",
        "agreement",
        [
            ".verdict",
            ".answers",
            ".bar .chips",
            ".bar .row:nth-child(2)",
            "[data-plot=loss]",
            "#readout",
            "[data-plot=loss-difference]",
        ],
        hover=0.42,
    ),
    AnnotatedPicture("report_diverging", "diverging_port", [".verdict", ".answers", "[data-plot=loss-difference]"]),
    AnnotatedPicture(
        "report_asynchrony",
        "asynchrony",
        [".bars:nth-child(1)", ".bars:nth-child(3)", ".timeline[data-run='3']"],
    ),
]


def main() -> None:
    """Write the pages, and draw a picture of each."""
    with TemporaryDirectory() as directory, sync_playwright() as driver:
        executable = next((path for name in BROWSERS if (path := shutil.which(name))), None)
        if executable is None:
            raise SystemExit(f"error: none of {', '.join(BROWSERS)} is installed")
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        for picture in PICTURES:
            output = Path(directory, picture.name)
            compare([str(GALLERY / picture.report), f"output={output}"])
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
            page.goto((output / "report.html").resolve().as_uri())
            page.wait_for_selector("canvas")
            draw_picture(page, picture, DOCS / f"{picture.name}.png")
        browser.close()


def draw_picture(page: Page, picture: AnnotatedPicture, path: Path) -> None:
    """Write the annotated parts of a page as a PNG."""
    page.set_viewport_size({"width": WIDTH, "height": page.evaluate("document.documentElement.scrollHeight")})
    if picture.hover is not None:
        box = page.locator(".u-over").first.bounding_box()
        assert box
        page.mouse.move(box["x"] + picture.hover * box["width"], box["y"] + box["height"] / 2)
        page.wait_for_selector("#readout:not([hidden])")
    box = page.evaluate(ANNOTATE, picture.parts)
    left, top = box["x"] - MARGIN, box["y"] - MARGIN
    width, height = box["width"] + 2 * MARGIN, box["height"] + 2 * MARGIN
    page.screenshot(path=path, clip={"x": left, "y": top, "width": width, "height": height})


if __name__ == "__main__":
    main()
