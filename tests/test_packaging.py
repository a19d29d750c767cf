"""What is installed is what is in the repository, and it stays out of the way of users' own files.

The generic package names (`scheduler`, `optimizer`, ...) are names that users have too. Code that runs in their
processes imports `walras` alone.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import walras
from tests.support.installed import ROOT, SHIPPED, build_wheel, copy_sources, tracked_sources

GENERIC = ("scheduler", "optimizer", "workers", "simulator")


@pytest.mark.slow
def test_the_wheel_holds_every_tracked_source_and_nothing_else(tmp_path: Path) -> None:
    """The built wheel's files are exactly the tracked files of the shipped folders: modules, configs, `py.typed`."""
    sources = tracked_sources()
    wheel = build_wheel(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert sorted(sources - names) == [], "missing from the wheel"
    assert sorted(names - sources) == [], "in the wheel, but not tracked"


def contents_of(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel by name, without the list of their hashes and what the build tool says of itself."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if Path(name).name not in ("RECORD", "WHEEL")]
        return {name: archive.read(name) for name in names}


@pytest.mark.slow
def test_the_wheel_of_the_source_archive_is_the_wheel_of_the_sources(tmp_path: Path) -> None:
    """Who has the source archive of a release alone builds the same wheel from it, file by file."""
    pytest.importorskip("build", reason="NO BUILD: pip install 'walras[release]' builds source archives")
    sources = copy_sources(tmp_path / "sources")
    made = subprocess.run(
        [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path / "dist", sources],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert made.returncode == 0, made.stderr
    (archive,) = (tmp_path / "dist").iterdir()
    assert archive.name == f"walras-{walras.__version__}.tar.gz"
    with tarfile.open(archive) as files:
        files.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    ours = contents_of(build_wheel(tmp_path / "ours"))
    theirs = contents_of(build_wheel(tmp_path / "theirs", unpacked))
    assert sorted(ours.keys() ^ theirs.keys()) == []
    assert [name for name in ours if ours[name] != theirs[name]] == []
    assert {f"{name}/py.typed" for name in SHIPPED if name != "configs"} <= ours.keys()


def test_the_version_has_one_home() -> None:
    """pyproject.toml takes it from `walras.__version__`, pages that name a wheel name this one, and so does a tag."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "walras.__version__"}
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {version for page in pages for version in re.findall(r"walras-(\d[\w.]*)-py3", page.read_text())}
    assert named == {walras.__version__}
    listed = subprocess.run(["git", "tag", "--points-at", "HEAD", "v*"], cwd=ROOT, capture_output=True, text=True)
    assert set(listed.stdout.split()) <= {f"v{walras.__version__}"}


@pytest.mark.slow
def test_the_bill_of_materials_is_what_an_installation_consists_of() -> None:
    """All that `walras[all]` requires is in it, tools of development are not, each with the version that is here."""
    pytest.importorskip("cyclonedx_py", reason="NO CYCLONEDX: pip install 'walras[release]' writes the bill")
    from tests.support.software_bill import release_bill

    bill = release_bill()
    assert bill["bomFormat"] == "CycloneDX"
    main = bill["metadata"]["component"]
    assert (main["name"], main["version"]) == ("walras", walras.__version__)
    versions = {each["name"].lower(): each["version"] for each in bill["components"]}
    assert {"aiohttp", "cvxpy", "torch", "pydantic", "numpy", "llvmlite"} <= versions.keys()
    assert {"pytest", "mypy", "sphinx", "cyclonedx-bom", "ecos", "walras"} & versions.keys() == set()
    assert [name for name, version in versions.items() if version != metadata.version(name)] == []
    assert "file:" not in str(bill)


def users_folder(folder: Path) -> None:
    """A folder as users have it: files of their own under our generic names."""
    for name in GENERIC:
        (folder / f"{name}.py").write_text(f"OWNER = 'the user of {name}'\n")


def run_python(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter whose working directory (first on its path) is the user's folder."""
    clean = {"PATH": os.environ["PATH"], "HOME": str(folder), **environment}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=clean, capture_output=True, text=True, timeout=60
    )


def test_users_files_and_walras_import_side_by_side(tmp_path: Path) -> None:
    """In a folder with `scheduler.py` and the like, everybody gets their own, and `walras` still imports."""
    users_folder(tmp_path)
    code = "\n".join(
        [f"import {name}; assert {name}.OWNER == 'the user of {name}'" for name in GENERIC]
        + ["import walras, walras.errors, walras.training", "print(walras.__version__)"]
    )
    done = run_python(code, tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr


def test_the_in_job_client_brings_nothing_along(tmp_path: Path) -> None:
    """`import walras.training` loads the standard library and itself: no third-party and none of the generic names."""
    users_folder(tmp_path)
    code = (
        "import sys; before = set(sys.modules)\n"
        "import walras.training\n"
        "roots = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(roots - set(sys.stdlib_module_names)))"
    )
    # -S would be stricter still, but hides the editable install that this test is about.
    done = run_python(code, tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['walras']"


def test_the_light_commands_load_nothing_heavy(tmp_path: Path) -> None:
    """The command line comes up without cvxpy, torch, numpy, textual and their like, or any of the generic packages."""
    code = (
        "import sys, walras.cli.main\n"
        "heavy = {'cvxpy', 'torch', 'numpy', 'matplotlib', 'networkx', 'textual', 'mcp', *" + repr(GENERIC) + "}\n"
        "print(sorted(heavy & {name.split('.')[0] for name in sys.modules}))"
    )
    done = run_python(code, tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_a_daemon_refuses_to_start_over_a_users_file(tmp_path: Path) -> None:
    """With PYTHONPATH pointing at a user's `scheduler.py`, `walras server` stops and names that file."""
    users_folder(tmp_path)
    done = run_python(
        "import sys; from walras.cli.main import main\n"
        "sys.argv = ['walras', 'server', '--data', 'data']; sys.exit(main())",
        tmp_path,
        PYTHONPATH=f".{os.pathsep}{ROOT}",
    )
    assert done.returncode != 0
    assert str(tmp_path / "scheduler.py") in done.stdout + done.stderr


def described(site: Path, name: str, files: tuple[str, ...]) -> Path:
    """What pip writes of an installed distribution: these packages are its files."""
    about = site / f"{name}-2.5.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.5\n")
    (about / "RECORD").write_text("".join(f"{file}/__init__.py,,\n" for file in files))
    return about


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Walras as pip installs it, beside a distribution that brings other packages."""
    site = tmp_path_factory.mktemp("site")
    for name in SHIPPED:
        shutil.copytree(ROOT / name, site / name)
    described(site, "walras", SHIPPED)
    described(site, "unrelated", ("scheduler_tools", "my/workers"))
    return site


@pytest.mark.parametrize("root", [*GENERIC, "configs", ""])
def test_a_daemon_refuses_to_start_over_another_distributions_files(tmp_path: Path, site: Path, root: str) -> None:
    """A distribution installed beside Walras that brings a package of the same name is named, with its version."""
    code = "import sys; from walras.cli.main import main\nsys.argv = ['walras', 'policy', 'list']; sys.exit(main())"
    foreign = described(site, "foreign", (root or "another",))
    done = run_python(code, tmp_path, PYTHONPATH=str(site))
    shutil.rmtree(foreign)
    assert done.returncode == (2 if root else 0)
    assert (f"foreign 2.5 is installed at {site} too and brings {root}" in done.stderr) == bool(root)


def injected_zip(folder: Path) -> Path:
    """What an agent puts on a job's PYTHONPATH: the package's root file and the in-job client."""
    path = folder / "in-job.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for source in [ROOT / "walras/__init__.py", *(ROOT / "walras/training").glob("*.py")]:
            archive.write(source, source.relative_to(ROOT).as_posix())
    return path


@pytest.mark.parametrize("installed", [False, True])
def test_the_injected_client_imports_beside_the_users_files(tmp_path: Path, *, installed: bool) -> None:
    """The zip serves `walras.training` next to a user's `scheduler.py`; an installed `walras` stays reachable."""
    archive = injected_zip(tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    users_folder(work)
    code = (
        "import walras.training, scheduler\n"
        "assert 'in-job.zip' in walras.training.__file__, walras.training.__file__\n"
        "assert scheduler.OWNER == 'the user of scheduler'\n"
    )
    if installed:
        code += "import walras.errors\n"
    path = os.pathsep.join([str(archive), str(ROOT)] if installed else [str(archive)])
    done = subprocess.run(
        [sys.executable, *([] if installed else ["-S"]), "-c", code], cwd=work,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
