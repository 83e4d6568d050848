"""Build the documentation site: `python -m tools.build_site build/site`.

Zensical keeps its cache in `.cache` beside its configuration, and may remove that folder. Ours holds jars that took minutes
to fetch, so the site is built from a copy in another folder.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tools.site_links import problems

ROOT = Path(__file__).parents[1]
SOURCES = ("mkdocs.yml", "CHANGELOG.md", "docs", "src")


def main(target: str) -> int:
    site, copy = Path(target).absolute(), Path(target).absolute().with_name("site-sources")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.rmtree(site, ignore_errors=True)
    copy.mkdir(parents=True)
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    zensical = Path(sys.executable).with_name("zensical")
    built = subprocess.run([zensical, "build", "--strict", "--config-file", copy / "mkdocs.yml"], check=False)
    if built.returncode:
        return built.returncode
    (copy / "site").rename(site)
    shutil.rmtree(copy)
    broken = list(problems(site))
    sys.stderr.write("".join(f"{line}\n" for line in broken))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
