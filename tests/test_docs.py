"""The code blocks of README and guide run, in order, as one program per page; examples run; links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "README.zh.md", "docs/guide.md", "docs/guide.zh.md")
EXAMPLES = sorted(ROOT.glob("examples/*/README.md"))


def blocks(page: str) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S))


@pytest.mark.parametrize("page", PAGES)
def test_code_runs(page: str, tmp_path: Path) -> None:
    program = tmp_path / "page.py"
    program.write_text(blocks(page), encoding="utf-8")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def commands(page: Path) -> list[list[str]]:
    """What a page tells to run with python, as arguments; scripts of the repository by their place here."""
    lines = re.findall(r"^\$ python (.+)$", page.read_text(encoding="utf-8"), re.M)
    return [[str(ROOT / word) if (ROOT / word).exists() else word for word in line.split()] for line in lines]


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.parent.name)
def test_example_runs(page: Path, tmp_path: Path) -> None:
    told = commands(page)
    assert {str(script) for script in page.parent.glob("*.py")} <= {word for command in told for word in command}
    for command in told:
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize(
    "page",
    sorted(
        str(page.relative_to(ROOT))
        for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md")
        for page in ROOT.glob(pattern)
    ),
)
def test_links_lead_somewhere(page: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), f"{page} links to {target}"


@pytest.mark.parametrize(
    "pair", [("README.md", "README.zh.md"), ("docs/guide.md", "docs/guide.zh.md")], ids=lambda p: p[0]
)
def test_both_languages_say_the_same(pair: tuple[str, str]) -> None:
    english, chinese = ((ROOT / page).read_text(encoding="utf-8") for page in pair)
    assert len(re.findall(r"^#+ ", english, re.M)) == len(re.findall(r"^#+ ", chinese, re.M))
    code = [re.sub(r"#.*", "", blocks(page)) for page in pair]
    assert code[0].split() == code[1].split()
