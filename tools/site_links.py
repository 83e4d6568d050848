"""Check the built site: every link within it leads to a page, an anchor or a file, and nothing is loaded from elsewhere.

python -m tools.site_links build/site
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_ATTRIBUTES = {"a": "href", "area": "href", "img": "src", "link": "href", "script": "src", "source": "src", "iframe": "src"}
_LOADED = {"img", "link", "script", "source", "iframe"}
_NOT_LOADED_LINKS = {"canonical", "next", "prev"}


@dataclass
class _Page(HTMLParser):
    """The anchors of a page, and what it refers to."""

    anchors: set[str] = field(default_factory=set)
    references: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := found.get(name))}
        target = found.get(_ATTRIBUTES.get(tag, ""))
        if target and found.get("rel") not in _NOT_LOADED_LINKS:
            self.references.append((tag, target))


def problems(site: Path) -> Iterator[str]:
    """What is wrong with the links of a site, a line each."""
    pages = {path: _parse(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for tag, target in page.references:
            if fault := _fault(site, pages, path, tag, target):
                yield f"{path.relative_to(site)}: {target}: {fault}"


def _parse(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def _fault(site: Path, pages: dict[Path, _Page], path: Path, tag: str, target: str) -> str | None:
    parts = urlsplit(target)
    if parts.scheme in ("data", "mailto", "javascript"):
        return None
    if parts.scheme or parts.netloc:
        return "loaded from another server" if tag in _LOADED else None
    start = site if parts.path.startswith("/") else path.parent
    file = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else path.resolve()
    file = file / "index.html" if file.is_dir() else file
    if not file.exists():
        return "does not exist"
    found = pages.get(site / file.relative_to(site.resolve())) if file.suffix == ".html" else None
    if parts.fragment and found is not None and unquote(parts.fragment) not in found.anchors:
        return "no such anchor"
    return None
