"""What the demos share: a folder with a catalog, headings, and the command line as a user runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from rich.console import Console

import pyarctic

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".demo"
ARCTIC = Path(sys.executable).with_name("arctic")
WIDTH = 100

console = Console(highlight=False, width=WIDTH)


def prepare() -> None:
    """Make an empty .demo/ with the catalog `demo`."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    properties = {"type": "sql", "uri": f"sqlite:///{FOLDER}/catalog.db", "warehouse": FOLDER.as_uri()}
    catalog = f"  demo: {{type: sql, uri: '{properties['uri']}', warehouse: '{properties['warehouse']}'}}"
    (FOLDER / "arctic.yaml").write_text(f"catalogs:\n{catalog}\n")
    pyarctic.catalog("demo", **properties)


def say(title: str, more: str = "") -> None:
    console.print(f"\n[bold cyan]{title}[/]" + (f"[dim]: {more}[/]" if more else ""))


def result(text: str) -> None:
    console.print(f"  [green]{text}[/]")


def arctic(*arguments: str) -> None:
    """Run a command as a user would."""
    words = [f'"{word}"' if set(" *'") & set(word) else word for word in arguments]
    console.print(f"[bold]$ arctic {' '.join(words)}[/]", soft_wrap=True)
    environment = {**os.environ, "COLUMNS": str(WIDTH)}
    subprocess.run([ARCTIC, "--config", FOLDER / "arctic.yaml", *arguments], check=True, env=environment)
