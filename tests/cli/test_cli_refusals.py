"""A command that is refused says why in one error, with its exit code, and changes no byte: not of the pod's home, not of the
working folder."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from cli.cli_rig import Rig
from cli.cli_shell import Shell

from pod import Manifest, Pod
from pod.log.folder import PodFolder
from pod.log.inbox import Command, post, waiting
from pod.operations import clear, fork
from pod.transfer import export_pod
from worker.testing import ScriptedModel, call, say

OFFLINE = 'version = 1\n[model]\nname = "offline:surveyor"\n[tools]\nenable = []\n'
WRITES = {"permissions": {"profile": "safe"}, "tools": {"enable": ["write_file"]}, "scope": {"write": ["."]}}
MISSING_KEY = "BADINPUT_TEST_KEY"


def _made(home: Path, cwd: Path, name: str, steps: list[object], **sections: object) -> PodFolder:
    """A pod whose stored manifest names the offline model, and whose run went as these steps say."""
    values = {"model": {"name": "offline:surveyor"}, "tools": {"enable": []}, "log": {"durability": "os"}, **sections}
    model = ScriptedModel(steps, name="offline:surveyor")  # pyright: ignore[reportArgumentType]

    async def main() -> None:
        async with Pod.open(Manifest.model_validate(values), name=name, home=home, cwd=cwd, model=model) as pod:
            if steps:
                await pod.run("the task")

    anyio.run(main)
    return PodFolder(home, name)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with pods in every state that a command may refuse, and a working folder with manifests and files."""
    root = tmp_path_factory.mktemp("world")
    home, work = root / "home", root / "work"
    work.mkdir()
    (root / "elsewhere").mkdir()
    _made(home, work, "finished", [say("done")])
    _made(home, work, "new", [])
    _made(home, work, "asked", [call("write_file", path="a", content="x"), say("done")], **WRITES)
    _made(home, work, "keyed", [call("write_file", path="a", content="x"), say("done")], **WRITES | {
        "model": {"name": "openai-chat:x", "base_url": "http://127.0.0.1:9/v1", "api_key_env": MISSING_KEY}})  # fmt: skip
    gone = root / "gone"
    gone.mkdir()
    _made(home, gone, "homeless", [say("done")])
    gone.rmdir()
    fork(home, "finished", "forked")
    for name in ("nopointer", "badlog", "torn", "lostlog", "emptylog", "cleared", "newer"):
        fork(home, "finished", name) if name == "cleared" else _made(home, work, name, [say("done")])
    anyio.run(clear, home, "cleared")
    PodFolder(home, "nopointer").pointer_path.write_bytes(b'{"format": 1, "name"')
    log = {name: PodFolder(home, name).logs()[0] for name in ("badlog", "torn", "lostlog", "emptylog")}
    lines = log["badlog"].read_bytes().splitlines(keepends=True)
    log["badlog"].write_bytes(b"".join([*lines[:2], b"#" * 20 + b"\n", *lines[3:]]))
    log["torn"].write_bytes(log["torn"].read_bytes() + b'{"v":1,"se')
    log["lostlog"].unlink()
    log["emptylog"].write_bytes(b"")
    newer = PodFolder(home, "newer").pointer_path
    newer.write_bytes(newer.read_bytes().replace(b'"format":1', b'"format":99'))
    export_pod(home, "finished", work / "finished.pod.tar")
    whole = (work / "finished.pod.tar").read_bytes()
    (work / "cut.pod.tar").write_bytes(whole[: len(whole) // 2])
    (work / "fine.toml").write_text(OFFLINE)
    (work / "bad.toml").write_text(OFFLINE + "[compactoin]\nthreshold = 1\n")
    (work / "syntax.toml").write_text("version = = 1\n")
    (work / "keyed.toml").write_text(OFFLINE.replace("offline:surveyor", "openai-chat:x") .replace(
        "[tools]", f'base_url = "http://127.0.0.1:9/v1"\napi_key_env = "{MISSING_KEY}"\n[tools]'))  # fmt: skip
    (work / "toolless.toml").write_text(OFFLINE.replace("enable", 'python = ["no_such_module:tool"]\nenable'))
    (work / "small.toml").write_text(OFFLINE.replace("[tools]", "context_window = 300\n[tools]"))
    (work / "schema.json").write_text("{not json")
    return root


@pytest.fixture
def shell(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shell]:
    """Commands in a copy of that home."""
    monkeypatch.delenv(MISSING_KEY, raising=False)
    shutil.copytree(world / "home", tmp_path / "home", symlinks=True)
    made = Shell(Rig(world), capsys, monkeypatch)
    monkeypatch.setenv("POD_HOME", str(tmp_path / "home"))
    yield made


def _bytes(*roots: Path) -> dict[str, str]:
    """Every file and folder below, with its mode and the hash of what it holds."""
    found: dict[str, str] = {}
    for root in roots:
        for path in [root, *root.rglob("*")]:
            data = path.read_bytes() if path.is_file() else b""
            found[str(path)] = f"{path.lstat().st_mode:o} {hashlib.sha256(data).hexdigest()}"
    return found


NO_POD = ["resume nosuch", "resume nosuch hello", "send nosuch hello", "approve nosuch", "deny nosuch", "compact nosuch",
    "compact nosuch --dry-run", "clear nosuch", "rewind nosuch --to 3", "fork nosuch other", "rm nosuch", "export nosuch -o x",
    "stop nosuch", "interrupt nosuch", "show nosuch", "context nosuch", "inspect nosuch", "log nosuch",
    "doctor nosuch"]  # fmt: skip
BAD_NAME = [line.replace("nosuch", "../x") for line in NO_POD]
NO_POINTER = [
    line.replace("nosuch", "nopointer") for line in NO_POD if not line.startswith(("rm", "doctor", "show", "inspect"))
]
NEWER = [line.replace("nosuch", "newer") for line in NO_POD if not line.startswith(("rm", "doctor"))]
WRONG = [
    # a task
    "run fine.toml", "run fine.toml ''", "run fine.toml '  '", "run fine.toml --name finished", "run fine.toml --name new",
    "run fine.toml --name finished -C {root}/elsewhere", "run fine.toml --name finished --model offline:summarizer",
    "run fine.toml --name cleared", "run fine.toml --name forked", "run fine.toml ' ' --name finished", "run fine.toml -c",
    "run fine.toml --name torn",
    "resume finished", "resume finished ' '", "resume new", "resume cleared", "resume forked", "resume torn",
    "resume finished -C {root}/elsewhere", "resume finished --manifest fine.toml", "resume finished --set prune.enabled=false",
    "resume finished --json", "resume finished --output-format stream-json", "resume finished --wait",
    # a manifest and what is laid over it
    "run bad.toml x --name finished", "run syntax.toml x", "run nosuch.toml x", "run toolless.toml x --name finished",
    "run small.toml x --name finished", "run fine.toml x --name finished --set a=1", "run fine.toml x --name finished --set a",
    "run fine.toml x --name finished --model nope:x", "run fine.toml x --name finished --max-cost -1",
    "run fine.toml x --name finished --max-cost nan", "run fine.toml x --name finished --profile nope",
    "run fine.toml x --name finished --output-schema nosuch.json", "run fine.toml x --name finished --output-schema schema.json",
    "run fine.toml x --name finished -C {root}/nosuch", "run fine.toml x --name finished -o fine.toml",
    "run fine.toml x --name finished -o nosuch/out", "run fine.toml x --name ../x", "run fine.toml x --name finished/lock",
    "run fine.toml x --name finished --nosuch",
    "resume finished x --manifest bad.toml", "resume finished x --manifest nosuch.toml", "resume finished x --set a=1",
    "resume finished x --model nope:x", "resume finished x -C {root}/nosuch", "resume finished x --output-schema schema.json",
    "resume homeless x", "resume homeless", "resume finished x -o nosuch/out", "compact homeless",
    "models --manifest bad.toml", "manifest check bad.toml", "manifest show bad.toml", "manifest new fine.toml",
    "manifest new ./x", "manifest new x.toml --model nope:x",
    # a message
    "send finished ''", "send finished '  '", "send finished x --id '../x'",
    # an answer
    "approve finished", "deny finished", "approve asked nosuch", "deny asked nosuch", "approve asked nosuch --all",
    "approve asked --scope nope", "approve asked --resume -o nosuch/out",
    # a point
    "rewind finished --to 9999", "rewind finished --to 0", "rewind finished --to x", "rewind finished --to {last}", "rewind new --to 1",
    "rewind cleared --to 2", "rewind forked --to 2", "rewind torn --to 9999",
    "fork finished finished", "fork finished ../x", "fork finished x --at 9999", "fork finished x/y/z --at 9999",
    "fork finished x --at 0", "fork cleared x --at 1",
    # files
    "export finished -o nosuch/out", "import nosuch.tar", "import cut.pod.tar",
    "import fine.toml", "import finished.pod.tar", "import finished.pod.tar --name ../x", "import finished.pod.tar --name asked",
    "inspect finished --html nosuch/out.html",
    # the rest
    "gc", "gc --older-than soon", "rm", "show finished --item nosuch", "show finished --artifact nosuch",
    "run fine.toml x --name finished -C ''", "run fine.toml x --name ''", "resume finished x --manifest ''", "send finished x --id ''",
    "show finished --summary", "log finished --item nosuch", "log finished --after x", "stop finished --timeout nan", "nosuch",
]  # fmt: skip


@pytest.mark.parametrize("line", [*NO_POD, *BAD_NAME, *NO_POINTER, *NEWER, *WRONG])
def test_a_refused_command_changes_no_byte(line: str, shell: Shell, world: Path, tmp_path: Path) -> None:
    import shlex

    last = len(PodFolder(world / "home", "finished").logs()[0].read_bytes().splitlines())
    args = [word.replace("{root}", str(world)).replace("{last}", str(last)) for word in shlex.split(line)]
    before = _bytes(tmp_path / "home", world / "work", world / "elsewhere")
    shell(*args, code=2)
    assert _bytes(tmp_path / "home", world / "work", world / "elsewhere") == before
    errors = [text for text in shell.err.splitlines() if text.startswith("pod: error: ")]
    assert errors and "Traceback" not in shell.err and "unexpected" not in shell.err, shell.err


OTHER_CODES = [
    *(("badlog", line, 1) for line in ("send {pod} x", "resume {pod} x", "resume {pod}", "clear {pod}", "rewind {pod} --to 2", "compact {pod}",
        "fork {pod} other", "approve {pod}", "export {pod} -o x", "run fine.toml x --name {pod}")),
    *((pod, line, 1) for pod in ("lostlog", "emptylog") for line in ("send {pod} x", "resume {pod} x", "resume {pod}",
        "clear {pod}", "rewind {pod} --to 2", "compact {pod}", "approve {pod}", "fork {pod} other", "export {pod} -o x",
        "run fine.toml x --name {pod}")),
    ("keyed", "resume {pod} x", 77), ("keyed", "resume {pod}", 77), ("keyed", "approve {pod} --all --resume", 77),
    ("keyed", "deny {pod} --resume", 77), ("finished", "run keyed.toml x --name {pod}", 77),
]  # fmt: skip


@pytest.mark.parametrize(("pod", "line", "code"), OTHER_CODES)
def test_what_is_damaged_or_has_no_key_changes_no_byte_either(
    pod: str, line: str, code: int, shell: Shell, world: Path, tmp_path: Path
) -> None:
    """The lock alone may name another holder: damage is found while it is held."""
    lock = tmp_path / "home" / "pods" / pod / "lock"
    holder = lock.read_bytes()
    before = _bytes(tmp_path / "home", world / "work")
    shell(*line.format(pod=pod).split(), code=code)
    lock.write_bytes(holder)
    assert _bytes(tmp_path / "home", world / "work") == before
    assert "pod: error: " in shell.err and "Traceback" not in shell.err


BUSY = [
    "resume finished x",
    "clear finished",
    "rewind finished --to 3",
    "rm finished",
    "run fine.toml x --name finished",
]


@pytest.mark.parametrize("line", BUSY)
def test_what_another_process_writes_to_is_left_alone(line: str, shell: Shell, world: Path, tmp_path: Path) -> None:
    before = _bytes(tmp_path / "home", world / "work")
    with (tmp_path / "home" / "pods" / "finished" / "lock").open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        shell(*line.split(), code=75)
    assert _bytes(tmp_path / "home", world / "work") == before


def test_an_answer_for_a_pod_that_a_process_runs_is_left_to_it_without_the_key_of_its_model(
    shell: Shell, tmp_path: Path
) -> None:
    folder = PodFolder(tmp_path / "home", "keyed")
    with (folder.path / "lock").open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        shell("approve", "keyed", "--all", "--resume")
    assert "the process that runs the pod takes it up" in shell.err
    assert [command.kind for _, command in waiting(folder) if command] == ["approve"]


def test_a_message_in_the_inbox_is_something_to_go_on_with(shell: Shell, tmp_path: Path) -> None:
    folder = PodFolder(tmp_path / "home", "finished")
    post(folder, Command(kind="stop"))
    shell("resume", "finished", code=2)
    assert len(list(waiting(folder))) == 1, "what waits there waits on"
    post(folder, Command(kind="send", args={"text": "  "}))
    shell("resume", "finished", code=2)
    post(folder, Command(kind="send", args={"text": "and more"}))
    shell("resume", "finished", "-q")
    assert list(waiting(folder)) == []
