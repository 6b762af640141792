"""Pictures have the colours of the page."""

import re

from common.report.style import COLOURS
from tests.conftest import ROOT


def test_the_page_has_the_colours_of_the_pictures() -> None:
    css = (ROOT / "common" / "report" / "page" / "page.css").read_text()
    light, dark, *_ = css.split("prefers-color-scheme: dark")
    page_colours = dict(re.findall(r"--c(\d): (#[0-9a-f]{6});", light))
    assert page_colours == {str(index): colour for index, colour in enumerate(COLOURS)}
    assert len(re.findall(r"--c\d: #", dark)) == len(COLOURS)
