"""The pages of the documentation, and the blocks of code on them.

A comment before a block says what is special about it. A comment `<!-- test: … -->` holds one of these:

    setup NAME          for the page: which tables there are before its first block (tests/docs/prepared.py)
    fresh               for the page: every command starts with these tables anew
    spark               for the page: its blocks need Spark
    elsewhere PATH      for the page: another test runs it
    file NAME           the block is saved as this file, and not run
    from NAME           on a page with fresh blocks: the block starts with these tables instead
    exit CODE           the command ends with this exit code
    illustration        the block is a drawing, not the output of the block above it
    not run: REASON     the block cannot run here
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_PART = re.compile(
    r"^<!-- test: (?P<comment>.*?) -->$|^(?P<indent> *)```(?P<language>[\w-]*)[^\n`]*\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_PAGE_WORDS = ("setup", "fresh", "spark", "elsewhere")
_BLOCK_WORDS = ("file", "from", "exit", "illustration", "not run:")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    comment: str
    """What the comment before it says, if there is one."""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def reason_not_run(self) -> str | None:
        return self.comment.removeprefix("not run:").strip() if self.comment.startswith("not run:") else None

    @property
    def file_name(self) -> str | None:
        return self.comment.removeprefix("file ").strip() if self.comment.startswith("file ") else None

    def commands(self) -> tuple[Block, ...]:
        """A block for each command of a block of commands."""
        lines = self.text.replace("\\\n", " ").splitlines(keepends=True)
        return tuple(replace(self, text=line) for line in lines) if self.language == "bash" else (self,)

    @property
    def start(self) -> str | None:
        return self.comment.removeprefix("from ").strip() if self.comment.startswith("from ") else None

    @property
    def exit_code(self) -> int:
        return int(self.comment.removeprefix("exit ")) if self.comment.startswith("exit ") else 0


@dataclass(frozen=True)
class Page:
    """A Markdown file."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def notes(self) -> dict[str, str]:
        """What comments say about the whole page: the first word of each, and the rest."""
        comments = (match["comment"] for match in _PART.finditer(self.text) if match["comment"])
        words = (comment.partition(" ") for comment in comments if comment.startswith(_PAGE_WORDS))
        return {word: rest for word, _, rest in words}

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(self._blocks())

    def _blocks(self) -> Iterator[Block]:
        comment = ""
        for match in _PART.finditer(self.text):
            if match["comment"]:
                comment = match["comment"]
                if not comment.startswith((*_PAGE_WORDS, *_BLOCK_WORDS)):
                    raise ValueError(f"{self.name}: <!-- test: {comment} --> is not known")
                continue
            indent = len(match["indent"])
            yield Block(
                page=self.name,
                line=self.text.count("\n", 0, match.start()) + 1,
                language=match["language"],
                text="".join(line[indent:] for line in match["text"].splitlines(keepends=True)),
                comment="" if comment.startswith(_PAGE_WORDS) else comment,
            )
            comment = ""


PAGES = tuple(
    Page(path) for path in (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))) if path.name[0] != "_"
)
