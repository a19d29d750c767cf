"""The documents as a site, as `make docs` builds it."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.test_docs import DOCUMENTS, ROOT, name_of

needs_sphinx = pytest.mark.skipif(
    importlib.util.find_spec("sphinx") is None, reason="NO SPHINX: pip install 'walras[docs]' builds the site"
)


def build_site(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Build as `make docs` does; a warning is an error."""
    recipe = re.search(r"^docs:.*\n(?:\t.*\n)*?\t\$\(BIN\)/sphinx-build (.*) -c docs \. site$", MAKEFILE, re.MULTILINE)
    assert recipe is not None
    options = recipe[1].replace("$(JOBS)", "1").split()
    command = [sys.executable, "-m", "sphinx", *options, "-c", source / "docs", source, target]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=source)


MAKEFILE = (ROOT / "Makefile").read_text()
#: Pages that are read in the repository alone.
INSIDE = re.compile(r"(README|ARCHITECTURE|CONTRIBUTING)\.md|docs/(decisions/.+|results)\.md")


@needs_sphinx
@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Every page but those of Inside is in the menu, every link leads somewhere, no page fetches from elsewhere."""
    done = build_site(ROOT, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    pages = {name_of(page) for page in DOCUMENTS if (tmp_path / name_of(page)).with_suffix(".html").exists()}
    assert pages == {name_of(page) for page in DOCUMENTS if not INSIDE.match(name_of(page))}
    assert 'url=docs/index.html"' in (tmp_path / "index.html").read_text()
    fetched = r"<(?:script|img|iframe)[^>]+src=\"https?:|<link[^>]+rel=\"stylesheet\"[^>]+href=\"https?:"
    assert [page.name for page in tmp_path.rglob("*.html") if re.search(fetched, page.read_text())] == []
    first = (tmp_path / "docs/index.html").read_text()
    assert {"fleet.png", "session.svg"} <= set(re.findall(r"<img [^>]*src=\"\.\./_images/([\w.]+)\"", first))


@needs_sphinx
@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[a section](cli.md#that-is-not-there)", "that-is-not-there"),
        ("[a page](not-there.md)", "not-there.md"),
        ("![a picture](pictures/not-there.png)", "not-there.png"),
    ],
)
def test_what_leads_nowhere_ends_the_build(tmp_path: Path, text: str, told: str) -> None:
    """The test above can fail: a wrong section, page or picture is a warning, hence an error."""
    source = tmp_path / "source"
    (source / "docs").mkdir(parents=True)
    (source / "walras").mkdir()
    (source / "walras/__init__.py").write_text('__version__ = "1.0"\n')
    (source / "docs/site").mkdir()
    (source / "docs/conf.py").write_text((ROOT / "docs/conf.py").read_text())
    (source / "docs/cli.md").write_text("# Commands\n")
    (source / "docs/index.md").write_text(f"# First\n\n{text}\n\n```{{toctree}}\ncli\n```\n")
    done = build_site(source, tmp_path / "site")
    assert done.returncode != 0
    assert told in done.stderr


def test_the_recorded_session_is_a_picture_that_fetches_nothing() -> None:
    """docs/pictures/session.svg: commands of ours and what they printed, no font or script from elsewhere, no path of
    the machine that it was recorded on."""
    path = ROOT / "docs/pictures/session.svg"
    assert ElementTree.parse(path).getroot().tag.endswith("svg")
    text = path.read_text()
    assert not re.search(r"@font-face|url\(\"?http|<script|href=", text)
    words = " ".join("".join(ElementTree.parse(path).getroot().itertext()).replace("\N{NO-BREAK SPACE}", " ").split())
    typed = ("submit", "queue", "explain", "cloud prices")
    assert [command for command in typed if f"$ walras {command}" not in words] == []
    assert not re.search(r"/(tmp|root|home|work)/", words)


def test_the_tests_of_a_clean_clone_have_what_builds_the_site() -> None:
    """`make test-all` installs the extras without which these tests would be skipped."""
    recipe = MAKEFILE.split("\n.venv/.installed-dev:")[1].split("\n\n")[0]
    asked = re.search(r"'\.\[([\w,]+)\]'", recipe)
    assert asked is not None
    assert {"docs", "release"} <= set(asked[1].split(","))


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 110
