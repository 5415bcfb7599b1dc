"""Variables and paths: nothing silently loses its middle (B140), nothing moves with the process (B141)."""

from __future__ import annotations

from pathlib import Path

import pytest

from pod.manifest import ManifestError, fill_prompt, load_manifest
from pod.manifest.expand import BadText, escape, expand
from pod.manifest.render import to_toml

MODEL = '[model]\nname = "offline:surveyor"\n'


def test_an_undefined_variable_is_an_error_with_variable_and_key_b140(tmp_path: Path) -> None:
    """B140."""
    path = tmp_path / "m.toml"
    path.write_text(MODEL + "base_url = 'https://h/${MISSING}/v1'\n[scope]\nread = ['.', '${EMPTY}/x']\n")
    with pytest.raises(ManifestError) as caught:
        load_manifest(path, env={"EMPTY": ""}, cwd=tmp_path)
    texts = [str(problem).split("m.toml:")[1] for problem in caught.value.problems]
    assert texts == [
        "3: [model] base_url: the environment variable MISSING is not defined",
        "5: [scope] read: the environment variable EMPTY is empty",
    ]


def test_a_defined_variable_is_filled_in_where_it_may_stand(tmp_path: Path) -> None:
    (tmp_path / "p.md").write_text("prompt")
    path = tmp_path / "m.toml"
    path.write_text(
        MODEL
        + "base_url = 'https://${HOST}/v1'\n[worker]\nsystem_prompt_file = '${NAME}.md'\n"
        + "[scope]\nwrite = ['$${NAME}']\n"
    )
    manifest = load_manifest(path, env={"HOST": "h.example", "NAME": "p"}, cwd=tmp_path).manifest
    assert manifest.model.base_url == "https://h.example/v1"
    assert manifest.worker.system_prompt_file == str(tmp_path.resolve() / "p.md")
    assert manifest.scope.write == (str(tmp_path.resolve() / "${NAME}"),)


def test_prompt_text_survives_b140(tmp_path: Path) -> None:
    """B140: a `$` in a prompt is text."""
    prompt = "cost $5, ${NOT_A_VARIABLE}, $$, ${, $cwd"
    path = tmp_path / "m.toml"
    path.write_text(MODEL + f"[worker]\nsystem_prompt = '{prompt}'\n")
    assert load_manifest(path, env={}, cwd=tmp_path).manifest.worker.system_prompt == prompt


@pytest.mark.parametrize("text", ["${", "a${b", "${}", "${A:-b}", "${a b}"])
def test_a_badly_written_variable_is_an_error(text: str) -> None:
    with pytest.raises(BadText):
        expand(text, {"A": "1", "a": "1"})


@pytest.mark.parametrize("text", ["", "$", "$x", "a$$b${c}", "$$$", "$${A}"])
def test_escaped_text_expands_to_itself(text: str) -> None:
    assert expand(escape(text), {}) == text


def test_only_the_four_names_are_filled_into_a_prompt() -> None:
    values = {"cwd": "/w", "platform": "linux", "tools": "a, b", "pod": "p"}
    text = "$cwd ${cwd}x $tools. $pod/$platform $podx $toolset $other ${other} $$cwd $${pod} $$ $5 $"
    assert fill_prompt(text, **values) == "/w /wx a, b. p/linux $podx $toolset $other ${other} $cwd ${pod} $$ $5 $"


def test_a_value_that_is_filled_in_is_not_filled_again() -> None:
    assert fill_prompt("$cwd", cwd="$pod", platform="", tools="", pod="x") == "$pod"


@pytest.mark.parametrize("schema", ['{"const": "${HOME}"}', ' { "type": "integer" }', "{}"])
def test_a_schema_itself_in_the_place_of_its_file_is_no_path(tmp_path: Path, schema: str) -> None:
    """Nothing is filled in, and it goes through `pod manifest show --toml` as it is; `{manifest_dir}` still begins a path."""
    path = tmp_path / "m.toml"
    path.write_text(MODEL + f"[worker]\noutput_schema = '{schema}'\n")
    made = load_manifest(path, env={}, cwd=tmp_path).manifest
    assert made.worker.output_schema == schema and made.worker.output_schema_file is None
    path.write_text(to_toml(made))
    assert load_manifest(path, env={}, cwd=tmp_path).manifest == made
    (tmp_path / "out.json").write_text("{}")
    path.write_text(MODEL + "[worker]\noutput_schema = '{manifest_dir}/out.json'\n")
    found = load_manifest(path, env={}, cwd=tmp_path).manifest.worker.output_schema_file
    assert found == str(tmp_path.resolve() / "out.json")


def test_paths_are_resolved_once_and_stay_b141(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B141."""
    sub, work, elsewhere = (tmp_path / name for name in ("sub", "work", "elsewhere"))
    for folder in (sub, work, elsewhere):
        folder.mkdir()
    (sub / "prompt.md").write_text("p")
    (sub / "out.json").write_text("{}")
    (sub / "m.toml").write_text(
        MODEL + "[worker]\nsystem_prompt_file = 'prompt.md'\noutput_schema = './out.json'\n"
        "[scope]\nread = ['.', '../x', '{manifest_dir}', '{manifest_dir}/data', '~/notes', '/etc']\nwrite = ['out']\n"
    )
    monkeypatch.chdir(elsewhere)
    loaded = load_manifest(sub / "m.toml", env={"HOME": "/home/someone"}, cwd=work)
    before = loaded.manifest.model_dump()
    root = tmp_path.resolve()
    assert loaded.manifest.worker.system_prompt_file == str(root / "sub" / "prompt.md")
    assert loaded.manifest.worker.output_schema == str(root / "sub" / "out.json")
    assert loaded.manifest.scope.read == (
        str(root / "work"),
        str(root / "x"),
        str(root / "sub"),
        str(root / "sub" / "data"),
        str(Path("/home/someone/notes").resolve()),
        str(Path("/etc").resolve()),
    )
    assert loaded.manifest.scope.write == (str(root / "work" / "out"),)
    monkeypatch.chdir(tmp_path)
    assert loaded.manifest.model_dump() == before


def test_the_default_scope_is_the_working_folder_whatever_the_process_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B141: a value that nobody wrote is resolved too."""
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "m.toml").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    assert load_manifest("m.toml", env={}, cwd="work").manifest.scope.read == (str(work.resolve()),)


def test_a_path_of_a_base_starts_from_the_base(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "prompt.md").write_text("p")
    (base / "b.toml").write_text(
        MODEL + "[worker]\nsystem_prompt_file = 'prompt.md'\n[scope]\nread = ['{manifest_dir}']\n"
    )
    (tmp_path / "m.toml").write_text("extends = 'base/b.toml'\n")
    manifest = load_manifest(tmp_path / "m.toml", env={}, cwd=tmp_path).manifest
    assert manifest.worker.system_prompt_file == str(base.resolve() / "prompt.md")
    assert manifest.scope.read == (str(base.resolve()),)


def test_a_file_that_is_not_there_is_an_error_at_its_key(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(MODEL + "[worker]\nsystem_prompt_file = 'none.md'\n")
    with pytest.raises(ManifestError, match=r"m.toml:4: \[worker\] system_prompt_file: no such file: .*none.md"):
        load_manifest(path, env={}, cwd=tmp_path)


def test_manifest_dir_in_the_middle_of_a_path_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(MODEL + "[scope]\nread = ['a/{manifest_dir}']\n")
    with pytest.raises(ManifestError, match="only at the start"):
        load_manifest(path, env={}, cwd=tmp_path)


def test_instruction_names_cannot_leave_their_folder(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(MODEL + "[worker]\ninstructions = ['../AGENTS.md']\n")
    with pytest.raises(ManifestError, match=r"\[worker\] instructions: holds names"):
        load_manifest(path, env={}, cwd=tmp_path)
