"""What an agent says of the inputs in its cache: keys, once, and again to a server that may not know them."""

import json
import os
from pathlib import Path

from walras.job_needs import InputNeed
from walras.machine_tools import DATA_MOST, data_key
from workers.agent.agent import CachedInputs
from workers.preparation.folder_cache import FolderCache
from workers.preparation.inputs import INPUT_BOUNDS, bring_inputs


def cache_of(prepared: Path) -> FolderCache:
    return FolderCache(prepared / "inputs", INPUT_BOUNDS)


def test_what_was_fetched_is_told_once_and_again_after_a_resync(tmp_path: Path) -> None:
    cached = CachedInputs(tmp_path)
    assert cached.news(everything=False) is None
    assert cached.news(everything=True) == []
    cached.confirm([])
    (tmp_path / "data.txt").write_text("the data")
    needs = {"d": InputNeed(url=f"file:{tmp_path}/data.txt"), "made": InputNeed(command="echo made > $WALRAS_INPUT/x")}
    bring_inputs(cache_of(tmp_path), needs, tmp_path / "links", dict(os.environ))
    keys = sorted(data_key(each) for each in needs.values())
    assert cached.news(everything=False) == keys
    assert cached.news(everything=False) == keys  # the call was lost
    cached.confirm(keys)
    assert cached.news(everything=False) is None
    assert cached.news(everything=True) == keys


def test_two_versions_of_one_input_are_told_as_one(tmp_path: Path) -> None:
    source = tmp_path / "data.txt"
    for text in ("first", "second, longer"):
        source.write_text(text)
        bring_inputs(cache_of(tmp_path), {"d": InputNeed(url=f"file:{source}")}, tmp_path / text[:3], {})
    assert CachedInputs(tmp_path).news(everything=True) == [data_key(InputNeed(url=f"file:{source}"))]


def test_the_bytes_of_what_was_fetched_are_told_with_it(tmp_path: Path) -> None:
    """Of two versions those of the newer; a marker of the release before, or of a job's, tells none."""
    source = tmp_path / "data.bin"
    for number, size in enumerate((3000, 5000)):
        source.write_bytes(bytes(size))
        bring_inputs(cache_of(tmp_path), {"d": InputNeed(url=f"file:{source}")}, tmp_path / f"l{number}", {})
    newest, older = sorted((tmp_path / "inputs").glob("*.done"), key=lambda path: -path.stat().st_mtime_ns)
    cached = CachedInputs(tmp_path)
    cached.news(everything=True)
    (told,) = cached.fetched
    assert (told.key, told.size_bytes // 1000) == (data_key(InputNeed(url=f"file:{source}")), 5)
    assert told.seconds > 0
    for wrong in ({}, {"size_bytes": 1e400, "seconds": 1}, {"size_bytes": -1, "seconds": 1}, {"size_bytes": 1}):
        for marker in (newest, older):
            marker.write_text(json.dumps({"name": told.key} | wrong))
        cached = CachedInputs(tmp_path)
        assert cached.news(everything=True) == [told.key]
        assert cached.fetched == []


def test_what_is_removed_is_told_no_more(tmp_path: Path) -> None:
    bring_inputs(cache_of(tmp_path), {"d": InputNeed(command="true")}, tmp_path / "links", dict(os.environ))
    cached = CachedInputs(tmp_path)
    cached.confirm(cached.news(everything=True))
    (marker,) = (tmp_path / "inputs").glob("*.done")
    marker.unlink()
    assert cached.news(everything=False) == []


def test_what_a_job_wrote_into_the_cache_says_nothing(tmp_path: Path) -> None:
    """Ranks run as the agent's user: a marker of theirs must not break its calls, nor make them long."""
    folder = tmp_path / "inputs"
    folder.mkdir()
    for number, name in enumerate(["../../etc", 7, None, "x" * 10**6, "0" * 33, "0" * 32 + "\n"]):
        (folder / f"{number}.done").write_text(json.dumps({"name": name}))
    (folder / "7.done").write_text("no JSON")
    os.mkfifo(folder / "9.done")
    (folder / "10.done").mkdir()
    (folder / "8.done").write_text("[1]")
    for number in range(DATA_MOST + 50):
        (folder / f"k{number}.done").write_text(json.dumps({"name": f"{number:032x}"}))
    told = CachedInputs(tmp_path).news(everything=True)
    assert told is not None
    assert len(told) == DATA_MOST
