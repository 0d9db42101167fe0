"""The report as Markdown for a pull request."""

from __future__ import annotations

import re
from dataclasses import replace

from markdown_it import MarkdownIt

from padiff.records import SourceLine, Unmatched
from padiff.report import to_markdown
from padiff.report.markdown import MOST_TEXT, code, escaped
from tests.report.sketches import aligned, built_differently, diverged, hostile

DIVERGED = """\
## ❌ padiff: diverged

TorchModel (torch 2.13.0) and PaddleModel (paddle 3.3.1): 44 tensors compared, 35 differ; it starts at one place.

**It starts at `blocks.1.norm`** (LayerNorm vs LayerNorm), in forward, step 0.

rms error 3.0e-03, allowed 1.0e-05 (auto)

**Relative error 3.0e-03, 30,000 times what rounding explains, up to 12 ulp.**

* **eps**: eps is 0.001 in raw and 1e-05 in base; with base's value the outputs agree *(97 %, tested)*
* **bias**: the difference is the same along one axis *(40 %, a pattern that fits, not tested)*

| setting | base | raw |
|---|---|---|
| eps | `1e-05` | `0.001` |

base: `port/model.py:11` in `forward`

```text
    10      def forward(self, x):
>   11          h = self.norm(x)
    12          return x + self.fc(h)
```
"""


def rendered(text: str) -> str:
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(text)


def test_what_matters_comes_first() -> None:
    assert to_markdown(diverged()).startswith(DIVERGED)


def test_aligned_is_short() -> None:
    text = to_markdown(aligned())
    assert text.startswith("## ✅ padiff: aligned\n\nTorchModel (torch 2.13.0) and PaddleModel (paddle 3.3.1): ")
    assert "starts" not in text


def test_both_paths_and_what_stayed_alone() -> None:
    text = to_markdown(built_differently())
    assert "**It starts at `encoder.layer.1.layer_norm vs blocks.1.norm`**" in text
    assert "* base `encoder.pooler` (Pooler): raw calls nothing like it" in text
    assert "> only forward was compared" in text


def test_names_stay_text() -> None:
    page = rendered(to_markdown(hostile()))
    for tag in ("<script", "<img", "<svg", "<u>", "<b>", 'javascript:alert(3)"'):
        assert tag not in page
    assert "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "**bold** [link](javascript:alert(3)) @someone" in re.sub(r"<[^>]+>", "", page)
    assert page.count("<details>") == page.count("</details>") == 2


def test_a_fence_is_longer_than_what_it_holds() -> None:
    first = diverged().divergences[0]
    line = SourceLine("doc.py", 1, "f", "x = '''```'''")
    text = to_markdown(replace(diverged(), divergences=(replace(first, source=((line,), ())),)))
    assert "````text\n>    1  x = '''```'''\n````" in text


def test_code_and_text_of_any_kind() -> None:
    assert code("a.b") == "`a.b`"
    assert code("a|b`c<") == "<code>a&#124;b&#96;c&lt;</code>"
    assert code("") == "(empty)"
    assert escaped("a_b | <i>\n[x](y) @me") == r"a\_b &#124; &lt;i&gt; \[x\](y) &#64;me"


def test_it_fits_into_a_comment() -> None:
    alone = tuple(Unmatched("raw", f"a.{i}" + "x" * 5000, f"Block{i}", "nothing like it") for i in range(40))
    text = to_markdown(replace(diverged(), unmatched=alone))
    assert len(text) <= MOST_TEXT + 30
    assert text.endswith("*(cut here)*\n")
