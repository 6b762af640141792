"""Tests of the page in a real browser: what is drawn, and what the controls do."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.compare.pair import Tolerance
from common.compare.verdict import compare_runs
from common.report.page.render import render_html
from common.report.serve import ServedPage, serve_page
from tests.unit.common.compare.conftest import CHANGED, MakeRun, write_profile
from tests.unit.common.profile.test_lanes import STEP

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason=f"none of {', '.join(BROWSERS)} is installed"),
]

TOLERANCES = {"float32": Tolerance(loss=1e-5, grad_norm=1e-4)}
PLOTS = 7
HOSTILE = "</script><script>window.hacked = true</script><img src=x onerror='window.hacked = true'>\"'&"
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Return a function that opens the report of runs. The page may request and log nothing."""
    problems: list[str] = []
    contexts = []

    def show(*runs: Path, width: int = 1280, **options: Any) -> Any:
        path = tmp_path / "report.html"
        path.write_text(render_html(compare_runs(runs, TOLERANCES)), encoding="utf-8")
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}, **options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        allowed = (path.as_uri(), "data:")
        page.on("request", lambda request: problems.extend([] if request.url.startswith(allowed) else [request.url]))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached", timeout=10_000)
        page.set_default_timeout(10_000)
        return page

    yield show
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture
def runs(make_run: MakeRun) -> list[Path]:
    """Return two runs that agree, and one that diverges at step 12."""

    def diverge(rows: list[dict[str, Any]]) -> None:
        for row in rows[11:]:
            row["loss"] += 0.05

    return [
        make_run("a"),
        make_run("b", framework="tf", strategy="mirrored"),
        make_run("c", strategy="dp", change=diverge, replicas_changed=CHANGED, resumed_from=5),
    ]


def count_pixels(page: Any, plot: str, colour: str) -> int:
    """Count the pixels of a plot that have nearly the colour of a CSS variable."""
    script = """([plot, name]) => {
        const canvas = document.querySelector(`[data-plot="${plot}"] canvas`);
        const probe = document.createElement("i");
        probe.style.color = `var(${name})`;
        document.body.append(probe);
        const wanted = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
        probe.remove();
        const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
        copy.drawImage(canvas, 0, 0);
        const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
        let count = 0;
        for (let i = 0; i < data.length; i += 4) {
            count += data[i + 3] > 200 && wanted.every((value, k) => Math.abs(data[i + k] - value) < 24);
        }
        return count;
    }"""
    return int(page.evaluate(script, [plot, colour]))


def hover(page: Any, plot: str, share: float) -> str:
    """Return the readout at a share of the width of a plot."""
    area = page.locator(f'[data-plot="{plot}"] .u-over')
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
    page.wait_for_selector("#readout:not([hidden])")
    return str(page.inner_text("#readout"))


def read_x_range(page: Any) -> list[str]:
    """Return the readouts at both ends of the plot of the loss."""
    return [hover(page, "loss", share).splitlines()[0] for share in (0.001, 0.999)]


def test_every_plot_is_drawn(show: Open, runs: list[Path]) -> None:
    page = show(*runs)
    assert page.locator("canvas").count() == PLOTS
    for plot in ("loss", "grad-norm", "learning-rate", "validation-loss", "validation-accuracy"):
        assert sum(count_pixels(page, plot, f"--c{run}") for run in range(3)) > 20, plot
    assert count_pixels(page, "loss", "--c2") > 50 and count_pixels(page, "loss-difference", "--c2") > 50
    assert count_pixels(page, "loss-difference", "--c1") > 300, "the line that marks identical steps"
    caption = page.inner_text('[data-plot="loss-difference"] .caption')
    assert "tf mirrored x2: identical at 20 of 20 steps" in caption and "identical at 11 of 20 steps" in caption


def test_a_run_is_hidden_everywhere(show: Open, runs: list[Path]) -> None:
    page = show(*runs)
    page.click('.chip[data-run="2"]')
    assert page.get_attribute('.chip[data-run="2"]', "aria-pressed") == "false"
    assert count_pixels(page, "loss", "--c2") == 0 and count_pixels(page, "loss-difference", "--c2") == 0
    assert not page.locator('.group[data-run="2"]').first.is_visible()
    assert "torch dp" not in hover(page, "loss", 0.5) and page.locator("#times-rows tr").count() == 2
    page.click("#all")
    assert count_pixels(page, "loss", "--c2") > 50


def test_any_run_is_the_reference(show: Open, runs: list[Path]) -> None:
    page = show(*runs)
    assert "identical" in hover(page, "loss", 0.9) and "Δ 0.05" in hover(page, "loss", 0.9)
    page.select_option("#reference", "2")
    assert "loss of torch dp x3→2→4" in page.inner_text('[data-plot="loss-difference"] .caption')
    read = hover(page, "loss", 0.9)
    assert read.count("Δ 0.05") == 2 and "identical" not in read


def test_axes_scale_and_smoothing(show: Open, runs: list[Path]) -> None:
    page = show(*runs)
    assert hover(page, "loss", 0.5).startswith("step 1")
    for axis, read in (("examples", "352 examples"), ("tokens", "7,700 tokens"), ("seconds", "0.55 s")):
        page.check(f'input[name="axis"][value="{axis}"]')
        assert hover(page, "loss", 0.52).splitlines()[0] == f"step 11, {read}"
    page.check('input[name="scale"][value="log"]')
    page.select_option("#smoothing", index=1)
    assert "Smoothed: mean of 3 steps, centred" in page.inner_text('[data-plot="loss"] .caption')
    assert count_pixels(page, "loss", "--c2") > 20


def test_zoom_is_shared(show: Open, runs: list[Path]) -> None:
    page = show(*runs)
    assert read_x_range(page) == ["step 1", "step 20"] and page.locator("#reset").is_disabled()
    box = page.locator('[data-plot="loss"] .u-over').bounding_box()
    y = box["y"] + 50
    page.mouse.move(box["x"] + 0.25 * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], y, steps=5)
    page.mouse.up()
    page.wait_for_selector("#reset:enabled")
    assert read_x_range(page) == ["step 6", "step 10"]
    assert hover(page, "grad-norm", 0.999).startswith("step 10")
    page.click("#right")
    assert read_x_range(page) == ["step 8", "step 13"]
    page.click("#reset")
    assert read_x_range(page) == ["step 1", "step 20"]


def test_the_keyboard_reads_and_zooms(show: Open, runs: list[Path]) -> None:
    page = show(*runs)
    page.focus('[data-plot="loss"] .plot')
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#spoken").startswith("step 2. torch ddp x2 1.08")
    page.keyboard.press("Shift+ArrowRight")
    assert page.inner_text("#spoken").startswith("step 12. ") and "Δ 0.05" in page.inner_text("#spoken")
    page.keyboard.press("+")
    assert not page.locator("#reset").is_disabled()
    page.keyboard.press("0")
    assert page.locator("#reset").is_disabled()
    page.focus('.chip[data-run="1"]')
    page.keyboard.press("Space")
    assert page.get_attribute('.chip[data-run="1"]', "aria-pressed") == "false"


def test_dark_and_light(show: Open, runs: list[Path]) -> None:
    page = show(*runs, color_scheme="dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert count_pixels(page, "loss", "--c2") > 50
    page.emulate_media(color_scheme="light")
    page.wait_for_timeout(300)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    assert count_pixels(page, "loss", "--c2") > 50, "drawn again in the light colours"


def test_a_phone_needs_no_sideways_scrolling(show: Open, runs: list[Path]) -> None:
    page = show(*runs, width=400, has_touch=True, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert page.locator("canvas").first.bounding_box()["width"] <= 400
    assert count_pixels(page, "loss", "--c2") > 20


def test_a_table_is_copied_as_csv(show: Open, runs: list[Path]) -> None:
    page = show(*runs, permissions=["clipboard-read", "clipboard-write"])
    page.locator("section", has=page.locator("h2", has_text="Pairs")).locator(".copy").click()
    page.wait_for_selector(".copy:has-text('Copied')")
    rows = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert rows[0].startswith("run a,run b,verdict,steps,") and len(rows) == 4
    assert rows[1].startswith("torch ddp x2,tf mirrored x2,lockstep,20,")


def test_the_time_to_a_loss(show: Open, make_run: MakeRun) -> None:
    runs = [make_run("a"), make_run("b", framework="tf")]
    evals = [{"step": s, "examples": 32 * s, "loss": 1 - s / 100, "accuracy": 0.5, "duration": 0} for s in (5, 10, 20)]
    (runs[1] / "evals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in evals))
    page = show(*runs)
    page.fill("#target", "0.9")
    assert page.locator("#times-rows tr").all_inner_texts()[1].split("\t")[1:4] == ["0.5 s", "320", "10"]
    page.fill("#target", "0.85")
    assert page.locator("#times-rows tr").all_inner_texts()[0].split("\t")[1] == "not reached"


def test_a_profiled_step(show: Open, runs: list[Path]) -> None:
    write_profile(runs[0], [{**event, "name": event["name"].replace("Pooler", HOSTILE)} for event in STEP])
    page = show(*runs)
    figures = page.locator("figure.timeline")
    assert figures.count() == 1 and figures.get_attribute("data-run") == "0"
    assert page.locator(".lane").evaluate_all("lanes => lanes.map((lane) => lane.firstChild.textContent)") == [
        *("forward", "backward", "reduce", "update")
    ]
    widths = page.locator(".lane rect").evaluate_all("spans => spans.map((span) => span.getBoundingClientRect().width)")
    assert len(widths) == 4 + 4 + 2 + 1 and min(widths) > 5
    assert page.locator(".lane rect title").first.text_content() == "Embeddings: 10 ms, from 10 ms"
    assert page.locator(".layers").inner_text().split("\n") == ["Embeddings", "Layer 1", "Layer 2", HOSTILE]
    page.click('.chip[data-run="0"]')
    assert not figures.is_visible()


def test_hostile_names_are_text(show: Open, make_run: MakeRun) -> None:
    long = make_run("c", "train.seed=3", strategy="x" * 10_000)
    page = show(
        make_run("a", strategy=HOSTILE), make_run("b", strategy="{{ 7 * 7 }}${1}", error=HOSTILE), long, width=400
    )
    assert not page.evaluate("'hacked' in window") and page.locator("img").count() == 0
    assert HOSTILE in page.inner_text(".chips") and "{{ 7 * 7 }}" in page.inner_text(".chips")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert HOSTILE in hover(page, "loss", 0.5)


def test_a_served_page_updates_and_keeps_the_readers_choices(browser: Any, runs: list[Path]) -> None:
    comparison = compare_runs(runs, TOLERANCES)
    served = ServedPage(render_html(comparison, "1").encode(), "1")

    def publish(version: str) -> None:
        served.html, served.version = render_html(comparison, version).encode(), version

    problems: list[str] = []
    with serve_page(served, 0) as url, browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: problems.extend([] if request.url.startswith((url, "data:")) else [url]))
        page.goto(url)
        page.wait_for_selector("#live:text-is('Follows the runs.')")
        page.check('input[value="examples"]')
        page.check('input[value="log"]')
        page.click('.chip[data-run="1"]')
        page.select_option("#reference", "2")
        page.select_option("#smoothing", index=1)
        page.fill("#target", "0.95")
        page.click("#in")
        publish("2")
        page.wait_for_selector("html[data-version='2'][data-ready]", state="attached")
        assert page.is_checked('input[value="examples"]') and page.is_checked('input[value="log"]')
        assert page.get_attribute('.chip[data-run="1"]', "aria-pressed") == "false"
        assert page.input_value("#reference") == "2" and page.input_value("#target") == "0.95"
        assert page.evaluate("document.getElementById('smoothing').selectedIndex") == 1
        assert not page.is_disabled("#reset") and page.evaluate("document.activeElement.id") == "in"
        hover(page, "loss", 0.5)
        publish("3")
        page.wait_for_selector("#live:has-text('Update pending')")
        assert page.get_attribute("html", "data-version") == "2"
        page.mouse.move(2, 2)
        page.wait_for_selector("html[data-version='3'][data-ready]", state="attached")
    assert problems == []
