"""`pod export` and `pod import` as a user meets them."""

from __future__ import annotations

import shutil

import pytest
from cli.cli_rig import Rig
from cli.cli_shell import Shell

from worker.testing.provider_server import Answer, Call, ProviderServer


@pytest.fixture
def shell(rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(rig, capsys, monkeypatch)


def test_a_pod_goes_to_another_home_and_on_from_there(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    with ProviderServer([Answer("one"), Answer("two")]) as server:
        shell("run", shell.rig.manifest(server), "first", "--name", "a", "-q")
        assert shell("export", "a", "-o", "a.pod.tar") == ""
        assert shell.err.startswith("pod a: exported: 1 segment, ") and shell.err.count("\n") == 1
        shown = shell.json("show", "a")
        monkeypatch.setenv("POD_HOME", str(shell.rig.root / "other-home"))
        assert shell("import", "a.pod.tar", "--name", "team/b") == ""
        assert "imported (it was a)" in shell.err and 'pod resume team/b "..."` gives it a new message' in shell.err
        assert "its manifest: model openai-chat:test-model, profile unattended" in shell.err
        here = shell.json("show", "team/b")
        same = ("session", "segment", "totals", "manifest", "last_text", "cwd", "items")
        assert {key: here[key] for key in same} == {key: shown[key] for key in same}
        assert shell("resume", "team/b", "second", "-q") == "two\n"
        said = [m["content"] for m in server.requests[-1].json["messages"] if m["role"] != "system"]
        assert said == ["first", "one", "second"]
        assert shell("doctor", "team/b").startswith("team/b: ")


def test_it_travels_through_pipes(rig: Rig) -> None:
    with ProviderServer([Answer("one")]) as server:
        rig.pod("run", rig.manifest(server), "x", "--name", "a", "-q")
    out = rig.pod("export", "a")
    assert out.code == 0 and out.out.startswith(b"contents.json\0")
    got = rig.pod("import", "-", "--name", "b", given=out.out)
    assert (got.code, got.text) == (0, ""), got.err
    assert rig.pod("ls", "--names").text == "a\nb\n"


def test_mistakes_are_one_line_and_exit_code_2(shell: Shell) -> None:
    with ProviderServer([Answer("one")]) as server:
        shell("run", shell.rig.manifest(server), "x", "--name", "a", "-q")
    shell("export", "a", "-o", "a.tar")
    whole = (shell.rig.work / "a.tar").read_bytes()
    (shell.rig.work / "half.tar").write_bytes(whole[: len(whole) // 2])
    for arguments, said in (
        (("export", "nobody", "-o", "x"), "there is no pod named 'nobody'"),
        (("import", "a.tar"), "already a pod named 'a'"),
        (("import", "half.tar", "--name", "b"), "half.tar: not a whole export"),
        (("import", "nothing.tar"), "nothing.tar: can't be read (No such file or directory)"),
        (("import", "a.tar", "--name", "../b"), "can't be a pod's name"),
    ):
        assert shell(*arguments, code=2) == ""
        assert shell.err.startswith("pod: error: ") and shell.err.count("\n") == 1 and said in shell.err
    assert shell("ls", "--names") == "a\n"


def test_an_imported_pod_with_work_left_is_said_to_go_on(shell: Shell) -> None:
    with ProviderServer([Answer(calls=[Call("list_files", {"path": "."})]), Answer("done")]) as server:
        manifest = shell.rig.manifest(server, tools=["list_files"])
        shell("run", manifest, "x", "--name", "a", "-q", "--max-requests", "1", code=4)
        shell("export", "a", "-o", "a.tar")
        shell("import", "a.tar", "--name", "b")
        assert "`pod resume b` goes on" in shell.err
        assert shell("resume", "b", "-q", "--max-requests", "9") == "done\n"


def test_a_terminal_is_not_written_to(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pod.cli.transferring.is_terminal", lambda _stream: True)
    shell("export", "team/a", code=2)
    assert "pod export team/a -o team-a.pod.tar" in shell.err


def test_a_working_folder_that_is_not_here_is_said(shell: Shell) -> None:
    folder = shell.rig.root / "gone"
    folder.mkdir()
    with ProviderServer([Answer("one"), Answer("two")]) as server:
        shell("run", shell.rig.manifest(server), "x", "--name", "a", "-C", folder, "-q")
        shell("export", "a", "-o", "a.tar")
        shutil.rmtree(folder)
        shell("import", "a.tar", "--name", "b")
        assert f"working folder {folder} is not here" in shell.err
        assert "its last run finished; " in shell.err and 'pod resume b -C DIR "..."' in shell.err
        assert shell("resume", "b", "y", "-C", ".", "-q") == "two\n"


STARTS = """
[[hooks]]
event = "Stop"
command = ["true", "--all"]
[[mcp]]
name = "s"
command = ["./serve"]
env = ["GH_TOKEN"]
[[mcp]]
name = "t"
url = "http://127.0.0.1:9/mcp"
headers_env = { Authorization = "T_AUTH" }
"""


def test_an_import_tells_all_that_its_manifest_would_start_ask_or_send(shell: Shell) -> None:
    with ProviderServer([Answer("one")]) as server:
        shell("run", shell.rig.manifest(server, more=STARTS), "x", "--name", "a", "-q")
        shell("export", "a", "-o", "a.tar")
        shell("import", "a.tar", "--name", "b")
    for words in (
        "runs the hook true --all",
        "starts the server ./serve, with GH_TOKEN",
        "asks the server http://127.0.0.1:9/mcp, with T_AUTH",
        "sends TEST_KEY to its model",
    ):
        assert f"pod b: its manifest {words}\n" in shell.err


def test_the_pods_of_another_home_are_copied_in_one_command_and_those_that_are_here_stay(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ProviderServer([Answer("one"), Answer("two"), Answer("three"), Answer("four")]) as server:
        manifest = shell.rig.manifest(server)
        for name in ("b/0", "b/1", "c"):
            shell("run", manifest, "x", "--name", name, "-q")
        shown = shell.json("show", "c")
        monkeypatch.setenv("POD_HOME", str(shell.rig.root / "other-home"))
        assert shell("import", "--from", shell.rig.home, "b/1") == ""
        assert "pod b/1: imported: 1 segment" in shell.err and "\n1 pod imported from " in shell.err
        shell("resume", "b/1", "more", "-q")
        own = shell.json("show", "b/1")
        text = shell.rig.home / "pods" / "b" / "0" / "pod.json"
        whole = text.read_bytes()
        text.write_bytes(b"no pointer")
        shell("import", "--from", shell.rig.home, code=1)
        assert "pod b/0: error: " in shell.err and "1 pod imported from" in shell.err
        assert shell.err.endswith(", 1 stood here already, 1 failed\n")
        text.write_bytes(whole)
        shell("import", "--from", shell.rig.home)
    assert shell("ls", "--names") == "b/0\nb/1\nc\n"
    assert shell.json("show", "b/1")["totals"] == own["totals"], "it stays as it is"
    assert shell.json("show", "c")["totals"] == shown["totals"]
    for arguments, said in (
        (("import",), "`pod import --from HOME` another home"),
        (("import", "--from", shell.rig.root / "nowhere"), "no pods in"),
        (("import", "--from", shell.rig.home, "d*"), "no pods of the name 'd*'"),
        (("import", "--from", shell.rig.home, "--name", "x"), "keep their names"),
        (("import", "--from", shell.rig.root / "other-home"), "that is this home"),
    ):
        assert shell(*arguments, code=2) == ""
        assert shell.err.startswith("pod: error: ") and said in shell.err


def test_a_part_of_the_pods_is_listed(shell: Shell) -> None:
    with ProviderServer([Answer("x")] * 4) as server:
        manifest = shell.rig.manifest(server)
        for name in ("b/0", "b/1", "bc", "c"):
            shell("run", manifest, "x", "--name", name, "-q")
    assert shell("ls", "b", "--names") == "b/0\nb/1\n"
    assert shell("ls", "b*", "--names") == "b/0\nb/1\nbc\n"
    assert sorted(pod["name"] for pod in shell.json("ls", "b/")) == ["b/0", "b/1"]
    assert "bc" in shell("ls", "bc") and "b/0" not in shell("ls", "bc")
    assert shell("ls", "d") == "" and "no pods of the name 'd' in" in shell.err
