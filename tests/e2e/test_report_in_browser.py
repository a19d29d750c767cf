"""The report of a simulation, opened by a real browser."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.browser import browser

pytestmark = pytest.mark.slow

WORKLOADS = Path(__file__).parents[2] / "configs" / "workloads"
#: Text that would be markup or a script, were it not escaped.
NAME = "<script>document.title='owned'</script><b>x"


def _report(folder: Path) -> Path:
    """Of a small trace in which somebody chose such a name for a job and for a project."""
    header, *rows = (WORKLOADS / "three-types.csv").read_text().splitlines()
    names = header.split(",")
    changed = dict(zip(names, rows[0].split(","), strict=True)) | {"name": NAME, "project": NAME}
    trace = folder / "trace.csv"
    lines = [",".join([*names, *(each for each in ("name", "project") if each not in names)])]
    lines.append(",".join(changed.values()))
    lines += [row + "," * (len(changed) - len(names)) for row in rows[1:]]
    trace.write_text("\n".join(lines) + "\n")
    run = [str(Path(sys.executable).with_name("walras")), "simulate", "run", str(trace), "--cluster", "gavel-12-12-12"]
    subprocess.run([*run, "--policy", "walras", "--out", str(folder / "out")], check=True, timeout=300)
    return folder / "out" / "report.html"


def test_a_report_is_whole_by_itself_at_any_width(tmp_path: Path) -> None:
    """Every picture is drawn, nothing is fetched from elsewhere or overflows, names are text, the console is silent."""
    report = _report(tmp_path)
    with browser() as page:
        for width in (1400, 480):
            page.set_window_size(width, 900)
            page.get(report.as_uri())
            assert "owned" not in page.title
            assert page.execute_script("return document.scripts.length") == 0
            headings = page.execute_script("return [...document.querySelectorAll('h2')].map(h => h.innerText)")
            assert {"Figures", "Completion times", "Utilisation by pool", "Prices", "Timeline"} <= set(headings)
            drawn = "return [...document.querySelectorAll('svg, img')].map(p => p.getBoundingClientRect().width)"
            assert len(page.execute_script(drawn)) >= 5
            assert min(page.execute_script(drawn)) > 100
            assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
            assert page.execute_script(
                "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
            ), f"the page is wider than a window of {width} pixels"
            assert page.execute_script("return document.body.innerText").count(NAME) >= 1
        assert page.get_log("browser") == []


def test_the_slider_of_a_comparison_shows_each_time_by_keyboard(tmp_path: Path) -> None:
    """At the beginning, the end and between: each policy's machines, jobs, waiting and prices. Names are text, nothing
    is fetched, the page's own policy lets its script run, and the console is silent.
    """
    policy = tmp_path / "<b>mine<b>.yaml"
    policy.write_text("policy: {name: max_min_fairness}\n")
    command = [str(Path(sys.executable).with_name("walras")), "simulate", "compare", str(WORKLOADS / "three-types.csv")]
    command += ["--cluster", "gavel-12-12-12", "--policy", "fifo", "--policy", str(policy), "--set", "bounds=none"]
    subprocess.run([*command, "--out", str(tmp_path / "out")], check=True, timeout=300, capture_output=True)
    with browser() as page:
        from selenium.webdriver.common.keys import Keys

        def texts(selector: str) -> list[str]:
            script = "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)"
            return list(page.execute_script(script, f".time-slider {selector}"))

        for width in (1400, 480):
            page.set_window_size(width, 900)
            page.get((tmp_path / "out" / "compare.html").as_uri())
            assert texts("tr:first-child th") == ["", "fifo", "<b>mine<b>"]
            slider = page.find_element("css selector", ".time-slider input")
            slider.send_keys(Keys.HOME)
            begin, at_begin = texts("output"), texts("td")
            assert begin == ["00:00:00"]
            slider.send_keys(Keys.END)
            assert "over" in texts("td")
            slider.send_keys(Keys.HOME, *[Keys.PAGE_UP] * 3)
            between = texts("td")
            assert texts("output") != begin
            assert slider.get_attribute("aria-valuetext") == texts("output")[0]
            assert between != at_begin
            assert sum("jobs " in text and " held" in text for text in between) >= 2
            assert any("price " in text for text in between)
            colours = "return new Set([...document.querySelectorAll('.cells span')].map(e => e.style.background)).size"
            assert page.execute_script(colours) >= 3
            later, before = page.find_elements("css selector", ".time-slider button")[1], texts("output")
            later.click()
            assert texts("output") >= before
            assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
            assert page.execute_script(
                "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
            ), f"the page is wider than a window of {width} pixels"
        assert page.get_log("browser") == []
