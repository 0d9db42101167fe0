"""The page in a real browser: it loads without a complaint, and does what a person asks of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from padiff.report import Report, save
from tests.report.browser import Browser
from tests.report.sketches import SKETCHES, aligned, built_differently, diverged, hostile

SHOWN = "[...document.querySelectorAll('#tree .row')]"
CHOSEN = "document.querySelector('#tree .row.chosen')"


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Callable[..., Browser]:
    def opened(report: Report, **how: Any) -> Browser:
        save(report, tmp_path / "report.html")
        browser.open(tmp_path / "report.html", **how)
        return browser

    return opened


def text(browser: Browser, selector: str) -> str:
    found = browser.run(f"document.querySelector({selector!r}).innerText")
    assert isinstance(found, str)
    return found


def cells(browser: Browser, selector: str) -> list[list[list[str]]]:
    """The texts of all tables that a selector finds, line by line."""
    found: list[list[list[str]]] = browser.run(
        f"[...document.querySelectorAll({selector!r})].map(table =>"
        " [...table.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.textContent)))"
    )
    return found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", SKETCHES)
def test_it_loads_without_a_complaint(page: Callable[..., Browser], name: str, width: int, dark: bool) -> None:
    found = page(SKETCHES[name](), width=width, dark=dark)
    found.settle()
    assert found.complaints == []
    assert [url for url in found.requests if not url.startswith(("file:", "data:"))] == []
    assert found.run("document.documentElement.scrollWidth") <= width
    assert found.run("document.documentElement.dataset.theme") == ("dark" if dark else "light")


def test_the_verdict_and_the_place_are_at_the_top(page: Callable[..., Browser]) -> None:
    found = page(diverged())
    assert text(found, "#badge") == "✗ Diverged"
    assert text(found, "#place h2") == "It starts at blocks.1.norm"
    assert "eps is 0.001 in raw and 1e-05 in base" in text(found, "#place .cause")
    assert ">" in text(found, "#place pre .marked")
    assert found.run("document.querySelector('#place .cause').getBoundingClientRect().bottom < innerHeight")
    assert page(aligned()).run("document.getElementById('place').hidden") is True
    assert text(found, "#badge") == "✓ Aligned"


def test_not_sure_says_why(page: Callable[..., Browser]) -> None:
    found = page(SKETCHES["unsure"]())
    assert (text(found, "#badge"), text(found, "#notes")) == ("? Not sure", "nothing was compared")
    assert found.run(
        "[...document.querySelectorAll('main > section')].filter(one => !one.hidden).map(one => one.id)"
    ) == [
        "weights",
        "about",
    ]


def test_pictures_of_the_error(page: Callable[..., Browser]) -> None:
    found = page(diverged())
    assert found.run("document.querySelectorAll('#place .heat td').length") == 64
    assert text(found, "#place .pictures table:not(.heat) tbody tr").split("\t")[0].startswith("[0, 5]")


def test_both_sides_and_what_was_compared_are_at_the_top(page: Callable[..., Browser]) -> None:
    found = page(diverged())
    assert text(found, "#sides").split("\n") == [
        "base",
        "cpu, float32, evaluation",
        "raw",
        "cpu, float32, evaluation",
        "compared",
        "100 % of raw's calls, 100 % of raw's outputs, 100 % of raw's parameters",
    ]
    told = {name: sides for name, *sides in cells(found, "#about .twosides")[0]}
    assert told["≠ threads (differs)"] == ["2", "1"]
    assert told["device"] == ["cpu", "cpu"]
    assert told["oneDNN"] == ["–", "on"]
    assert told["version"] == ["2.13.0", "3.3.1"]


def test_all_attributes_side_by_side(page: Callable[..., Browser]) -> None:
    found = page(diverged())
    assert cells(found, "#detail .twosides") == [
        [
            ["≠ eps (differs)", "1e-5", "0.001"],
            ["normalized_shape", "(8,)", "(8,)"],
            ["elementwise_affine", "True", "True"],
        ],
        [["weight", "float32[8]", "float32[8]"]],
    ]
    assert "Built with: 1 attribute differs" in text(found, "#detail")


def test_each_tensor_has_its_numbers_and_its_picture(page: Callable[..., Browser]) -> None:
    found = page(diverged())

    def choose(name: str) -> None:
        buttons = "[...document.querySelectorAll('#detail .tensors button')]"
        found.run(f"{buttons}.find(one => one.innerText === {name!r}).click()")

    pressed = "document.querySelector('#detail .tensors button[aria-pressed=true]').innerText"
    assert found.run(pressed) == "forward output"
    assert text(found, "#tensor h4") == "forward output"
    assert found.run("document.querySelectorAll('#tensor > .pictures .heat td').length") == 64
    assert "64 of 64" in text(found, "#tensor .figures")
    choose("backward output")
    assert (found.run(pressed), text(found, "#tensor h4")) == ("backward output", "backward output")
    assert found.run("document.querySelectorAll('#tensor > .pictures').length") == 1
    choose("forward input 0")
    assert found.run("document.querySelectorAll('#tensor > .pictures').length") == 0
    assert "No picture: it agrees." in text(found, "#tensor")
    choose("gradient of weight")
    assert "of the many that differ, the first and the worst are drawn" in text(found, "#tensor")
    assert found.complaints == []


def test_source_of_both_sides_in_the_details(page: Callable[..., Browser]) -> None:
    found = page(built_differently())
    for _ in range(2):  # where it starts, and at a call that merely differs
        assert found.run("document.querySelectorAll('#detail pre .marked').length") == 2
        found.press("j")


def test_what_is_no_number_is_called_so(page: Callable[..., Browser]) -> None:
    found = page(SKETCHES["not a number"]())
    assert "(top line: NaN, Inf or no number)" in text(found, "#plot .u-legend")
    assert "no number on one side" in text(found, "#tensor .figures")
    assert "cosine" not in text(found, "#tensor .figures")


def test_names_stay_text(page: Callable[..., Browser]) -> None:
    found = page(hostile())
    assert found.complaints == []
    assert found.run("document.querySelectorAll('main script, img, svg, u').length") == 0
    assert text(found, "#place h2") == "It starts at blocks.1.norm vs </script><script>alert(1)</script>"


def test_search(page: Callable[..., Browser]) -> None:
    found = page(diverged(60, 31))
    found.press("/")
    assert found.run("document.activeElement.id") == "search"
    found.press(*"47.fc")
    assert text(found, "#shown") == "1 of 183 calls"
    assert found.run(f"{SHOWN}.map(row => row.querySelector('.name').innerText.trim())") == [
        "▾(the model itself) Model",
        "▾blocks.47 Block",
        "fc Linear",
    ]
    found.press("Enter")
    assert found.run(f"{CHOSEN}.innerText").split()[0] == "fc"
    assert text(found, "#detail h3") == "blocks.47.fc"
    found.press("/", "Escape")
    assert text(found, "#shown") == "183 calls"


def test_filters(page: Callable[..., Browser]) -> None:
    found = page(diverged())

    def choose(value: str) -> list[str]:
        found.choose("filter", value)
        rows = f"{SHOWN}.filter(row => !row.classList.contains('context'))"
        names: list[str] = found.run(f"{rows}.map(row => row.getAttribute('aria-label').split(',')[0])")
        return names

    assert choose("start") == ["blocks.1.norm"]
    assert choose("forward") == [
        "(the model itself)",
        "blocks.1",
        "blocks.1.norm",
        "blocks.1.fc",
        "blocks.2",
        "blocks.2.norm",
        "blocks.2.fc",
        "head",
    ]
    assert choose("agrees") == []
    assert len(choose("all")) == 12


def test_keys(page: Callable[..., Browser]) -> None:
    found = page(diverged())
    assert found.run(f"{CHOSEN}.getAttribute('aria-label')") == (
        "blocks.1.norm, LayerNorm, a difference starts here, forward different, backward different, gradient different"
    )
    found.press("j")
    assert text(found, "#detail h3") == "blocks.1.fc"
    found.press("k", "k")
    assert text(found, "#detail h3") == "blocks.1"
    assert found.run("document.activeElement.id") == "tree"
    assert found.run("document.getElementById('tree').getAttribute('aria-activedescendant')") == found.run(
        f"{CHOSEN}.id"
    )
    found.press("ArrowLeft")
    assert found.run(f"{CHOSEN}.getAttribute('aria-expanded')") == "false"
    assert found.run(f"{SHOWN}.length") == 10
    found.press("ArrowRight", "ArrowDown", "Enter")
    assert found.run("document.activeElement.id") == "detail"
    assert text(found, "#detail h3") == "blocks.1.norm"
    found.press("Escape")
    assert found.run("document.activeElement.id") == "tree"
    assert found.complaints == []


def test_the_plot(page: Callable[..., Browser]) -> None:
    found = page(diverged())
    assert found.run("document.querySelectorAll('#plot canvas').length") == 1
    assert found.run("document.getElementById('plot').getAttribute('aria-label')") == (
        "Forward: relative error of 12 tensors in the order of computation, 8 differ. "
        "Left and right move, Enter chooses."
    )
    found.run("document.getElementById('plot').focus()")
    found.press(*["ArrowRight"] * 5)
    assert text(found, "#plot-text") == (
        "blocks.1.norm · output · ✗ different · relative error 3.0e-3, 30,000 times what rounding explains"
    )
    found.press("ArrowRight", "Enter")
    assert text(found, "#detail h3") == "blocks.1.fc"


def test_a_click_on_a_point_chooses_it(page: Callable[..., Browser]) -> None:
    found = page(diverged())
    found.click(".u-over", 0.998, 0.5)
    assert text(found, "#detail h3") == "(the model itself)"


def test_phases_and_what_calls_add_by_themselves(page: Callable[..., Browser]) -> None:
    found = page(diverged())

    def press(name: str) -> str:
        buttons = "[...document.querySelectorAll('#depth-controls button')]"
        found.run(f"{buttons}.find(one => one.innerText === {name!r}).click()")
        label: str = found.run("document.getElementById('plot').getAttribute('aria-label')")
        return label

    assert press("Gradients").startswith(
        "Gradients: relative error of 8 tensors in the order of computation, 8 differ."
    )
    assert press("Forward").startswith("Forward: relative error of 12 tensors")
    assert press("Each call by itself").startswith(
        "Forward: relative error of 12 tensors in the order of computation, 1 differ."
    )
    assert found.complaints == []


def test_steps(page: Callable[..., Browser]) -> None:
    whole = aligned()
    later = diverged()
    both = replace(
        later,
        divergences=tuple(replace(one, step=1) for one in later.divergences),
        comparisons=(*whole.comparisons, *(replace(one, step=1) for one in later.comparisons)),
        calls=(*whole.calls, *(replace(one, step=1) for one in later.calls)),
        local=(),
    )
    found = page(both)
    assert found.run("document.getElementById('step').value") == "1"
    assert found.run(f"{SHOWN}.filter(row => row.classList.contains('startrow')).length") == 1
    found.choose("step", "0")
    assert found.run(f"{SHOWN}.filter(row => row.classList.contains('startrow')).length") == 0
    assert found.complaints == []


def test_the_theme_can_be_chosen(page: Callable[..., Browser]) -> None:
    found = page(diverged())
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = found.run(ground)
    found.run("document.getElementById('theme').click()")
    assert (text(found, "#theme"), found.run(ground)) == ("Theme: light", light)
    found.run("document.getElementById('theme').click()")
    assert text(found, "#theme") == "Theme: dark"
    assert found.run(ground) != light
    found.run("document.getElementById('theme').click()")
    assert found.complaints == []


def test_both_sides_names_weights_and_what_is_alone(page: Callable[..., Browser]) -> None:
    found = page(built_differently())
    assert "⇄ encoder.layer.1.layer_norm" in found.run(f"{CHOSEN}.innerText")
    assert "base encoder.pooler" in text(found, "#alone .row")
    assert "blocks.0.attention" in text(found, "#alone p")
    assert "1 unsure" in text(found, "#weights p")
    assert text(found, "#notes") == "only forward was compared"
    assert ["version", "2.13.0", "3.3.1"] in cells(found, "#about .twosides")[0]


def test_ten_thousand_calls_scroll(page: Callable[..., Browser]) -> None:
    found = page(diverged(3333, 1600))
    found.run("document.querySelector('#tree').focus()")
    found.choose("filter", "different")
    assert found.run("document.getElementById('tree').scrollHeight") > 5000 * 30
    typical = found.run(
        """(async () => {
          const box = document.getElementById("tree");
          const taken = [];
          for (let i = 0; i <= 40; i++) {
            const before = performance.now();
            box.scrollTop = (box.scrollHeight * i) / 40;
            await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
            taken.push(performance.now() - before);
          }
          return taken.sort((a, b) => a - b)[20];
        })()"""
    )
    assert typical < 100  # a few frames; generous, since the machine may be busy
    assert found.run(f"{SHOWN}.length") < 60
    assert found.run(f"{SHOWN}.at(-1).innerText").startswith("head Linear")
    assert found.complaints == []


def test_every_control_has_a_name_and_headings_go_down_one_by_one(page: Callable[..., Browser]) -> None:
    found = page(built_differently())
    unnamed = found.run(
        """[...document.querySelectorAll("button, input, select, [tabindex='0'], article")]
             .filter((one) => !(one.innerText || one.getAttribute("aria-label") || one.closest("label")))
             .map((one) => one.outerHTML)"""
    )
    assert unnamed == []
    untitled = found.run(
        """[...document.querySelectorAll("section:not([hidden])")]
             .filter((one) => !document.getElementById(one.getAttribute("aria-labelledby"))).map((one) => one.id)"""
    )
    assert untitled == []
    levels = found.run(
        """[...document.querySelectorAll("h1, h2, h3, h4")]
             .filter((one) => one.offsetParent).map((one) => Number(one.tagName[1]))"""
    )
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
