"""The documents say what is true: generated pages equal the models, every example runs, every link leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import forked
import pytest

from pod.docs import pages
from pod.manifest import load_manifest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for document in DOCUMENTS:
        for number, match in enumerate(BLOCK.finditer(document.read_text(encoding="utf-8")), 1):
            if match[1] == language:
                found.append((f"{document.name}-{number}", match[2]))
    return found


@pytest.mark.parametrize("name", sorted(pages()))
def test_a_generated_page_equals_what_the_models_say(name: str) -> None:
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == pages()[name], "run `make docs`"


@pytest.mark.parametrize(("name", "code"), blocks("python"), ids=[name for name, _ in blocks("python")])
def test_every_python_example_runs_and_runs_again_in_the_same_home(name: str, code: str, tmp_path: Path) -> None:
    source = tmp_path / "project" / "src"
    source.mkdir(parents=True)
    (source / "one.py").write_text("import two\n\n\ndef public():\n    return two\n", encoding="utf-8")
    (source / "two.py").write_text("# TODO: more\nclass Thing:\n    pass\n", encoding="utf-8")
    script = tmp_path / "example.py"
    script.write_text(code, encoding="utf-8")
    environment = {"POD_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    twice = "import runpy, sys\nfor _ in range(2):\n    runpy.run_path(sys.argv[1], run_name='__main__')"
    done = forked.run(["-c", twice, script], cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    if "report.md" in code:
        assert "public" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_the_first_example_of_the_readme_needs_no_folder_of_its_own(tmp_path: Path) -> None:
    _, code = next(block for block in blocks("python") if block[0].startswith("README"))
    environment = {"POD_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    empty = tmp_path / "empty"
    empty.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=empty,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and done.stdout.splitlines()[-1].startswith("finished"), done.stderr


@pytest.mark.parametrize(("name", "text"), blocks("toml"), ids=[name for name, _ in blocks("toml")])
def test_every_manifest_example_loads(name: str, text: str, tmp_path: Path) -> None:
    if not tomllib.loads(text).get("version"):
        pytest.fail(f"{name}: a TOML example is a whole manifest with its version")
    path = tmp_path / "example.toml"
    path.write_text(text, encoding="utf-8")
    assert load_manifest(path, cwd=tmp_path).manifest.model.name


def commands() -> list[str]:
    lines = (line for _, text in blocks("console") for line in text.splitlines())
    return sorted({line.split()[1] for line in lines if line.startswith("pod ")})


@pytest.mark.parametrize("command", commands())
def test_every_command_that_the_documents_name_has_help(command: str, tmp_path: Path) -> None:
    environment = {"POD_HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    call = [sys.executable, "-m", "pod", command, "--help"]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=30, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert command in done.stdout


FLOORS = ("worker", "interceptors", "compact_worker", "pod")
PACKAGES = sorted(p.parent for floor in FLOORS for p in (ROOT / floor).rglob("__init__.py"))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_map_has_every_module_of_a_package_and_no_other(package: Path) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition(f"\n### `{package.relative_to(ROOT).as_posix()}/`\n")[2].partition("\n#")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {name for cell in cells for name in re.findall(r"`(\w+\.py)`", cell)}
    assert named == {path.name for path in package.glob("*.py")} - {"__init__.py"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_to_a_file(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name}: {target}"
