"""The size of the whole is bounded: docs/decisions/0014-budget.md holds the numbers."""

import re
import subprocess

import pytest

from tests.support.house_measures import MEASURES, ROOT, TABLE, budget, lowered

#: A number that is further than this above what is measured is lowered, so that nothing grows back unnoticed.
SLACK = 0.02
_NAME = TABLE.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("name", MEASURES)
def test_the_house_keeps_to_its_budget(name: str) -> None:
    """No measure is above its number in the table, and no number is far above its measure."""
    allowed, measured = budget(TABLE.read_text())[name], MEASURES[name]()
    assert measured <= allowed, f"{name}: {measured:,} of {allowed:,}. Remove something, or see {_NAME}"
    assert allowed - measured <= max(SLACK * measured, 1), (
        f"{name}: {measured:,}, and the table still allows {allowed:,}: "
        "run `python -m tests.support.house_measures --lower`"
    )


def test_the_table_names_what_is_measured() -> None:
    """Each row of the table is measured, and each measure has a row."""
    assert set(budget(TABLE.read_text())) == set(MEASURES)


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def page_at(commit: str) -> str:
    found = subprocess.run(["git", "show", f"{commit}:{_NAME}"], cwd=ROOT, capture_output=True, text=True)
    return found.stdout if found.returncode == 0 else ""


def raised(before: str, after: str) -> list[str]:
    """Measures whose number is higher in the second page."""
    old, new = budget(before), budget(after)
    return sorted(name for name in old.keys() & new.keys() if new[name] > old[name])


def test_a_number_rises_only_against_something_named() -> None:
    """Each commit that raises a number says in its body what it replaces: a line `Replaces: ...`."""
    if (ROOT / ".git").is_dir() and git("rev-parse", "--is-shallow-repository").strip() == "true":
        pytest.skip("a shallow checkout has no history to look at")
    silent = []
    for commit in git("log", "--no-merges", "--format=%H", "--", _NAME).split():
        risen = raised(page_at(f"{commit}^"), page_at(commit))
        body = git("show", "--no-patch", "--format=%b", commit)
        if risen and not re.search(r"^Replaces: \S", body, re.MULTILINE):
            silent.append(f"{commit[:10]}: {', '.join(risen)}")
    assert silent == []


def test_a_rise_is_noticed_and_a_fall_is_written() -> None:
    """A higher number counts as raised, a lower one does not; lowering never raises a number."""
    page = "| tables                            |      40 | |\n| extras                            |       9 | |\n"
    assert raised(page, page.replace(" 40 ", " 41 ")) == ["tables"]
    assert raised(page, page.replace(" 40 ", " 39 ")) == []
    assert budget(lowered(page, {"tables": 38, "extras": 12})) == {"tables": 38, "extras": 9}
