"""Links between pages lead somewhere, and every page is in the navigation."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from tests.docs.pages import DOCS, PAGES, ROOT, Page
from tools.site_links import problems

_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_ANCHOR = re.compile(r'<a id="([^"]+)">')


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page(page: Page) -> None:
    broken = [link for link in _LINK.findall(_FENCE.sub("", page.text)) if not leads_somewhere(page, link)]
    assert broken == []


def leads_somewhere(page: Page, link: str) -> bool:
    parts = urlsplit(link)
    if parts.scheme:
        return parts.scheme in ("https", "mailto")
    target = Path(os.path.normpath(page.path.parent / parts.path)) if parts.path else page.path
    if not target.is_file():
        return False
    return not parts.fragment or parts.fragment in anchors(Page(target))


def anchors(page: Page) -> set[str]:
    text = _FENCE.sub("", page.text)
    headings = (re.sub(r"[^\w\s-]", "", heading.replace("`", "").lower()).strip() for heading in _HEADING.findall(text))
    return {re.sub(r"[-\s]+", "-", heading) for heading in headings} | set(_ANCHOR.findall(text))


def test_links_of_the_readme_work_on_a_package_index() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [link for link in _LINK.findall(_FENCE.sub("", readme)) if not link.startswith("https://")] == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    listed = list(pages_of(navigation))
    assert len(listed) == len(set(listed))
    assert set(listed) == {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}


def pages_of(navigation: object) -> list[str]:
    match navigation:
        case str(page):
            return [page]
        case dict(entries):
            return [page for entry in entries.values() for page in pages_of(entry)]
        case list(entries):
            return [page for entry in entries for page in pages_of(entry)]
        case _:
            raise TypeError(navigation)


def test_every_drawing_is_shown_and_has_a_description() -> None:
    shown = {Path(link).name for page in PAGES for link in _LINK.findall(page.text) if link.endswith(".svg")}
    drawings = sorted((DOCS / "img").glob("*.svg"))
    assert shown == {path.name for path in drawings}
    for path in drawings:
        text = path.read_text(encoding="utf-8")
        assert "<title" in text
        assert "<desc" in text
        assert "prefers-color-scheme: dark" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_path_of_the_machine_that_wrote_it_is_on_a_page(page: Page) -> None:
    assert str(ROOT) not in page.text


def test_the_checker_of_the_site_finds_what_is_broken(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.html").write_text(
        '<h1 id="x">A</h1><a href="sub/b.html#y">b</a><a href="#x">x</a><a href="https://e.org">e</a>'
    )
    (tmp_path / "sub" / "b.html").write_text(
        '<a href="../a.html#x">a</a><a href="../c.html">c</a><a href="../a.html#z">z</a><img src="https://e.org/i.png">'
    )
    assert list(problems(tmp_path)) == [
        "a.html: sub/b.html#y: no such anchor",
        "sub/b.html: ../c.html: does not exist",
        "sub/b.html: ../a.html#z: no such anchor",
        "sub/b.html: https://e.org/i.png: loaded from another server",
    ]
