"""A home in PostgreSQL: what is acknowledged is in the database, one machine writes at a time, all read the same."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from log.logs import batch, create, reopen, say
from store.pg_server import Server

psycopg = pytest.importorskip("psycopg", reason="the extra `postgres` is not installed: its tests are left out")

from store.home_rig import machine  # noqa: E402

from pod import Manifest, Pod, PodBusy, PodNotFound, StoreError, UsageProblem  # noqa: E402
from pod.log.doctor import examine, repair  # noqa: E402
from pod.log.files import absent, present  # noqa: E402
from pod.log.folder import PodFolder, pod_names  # noqa: E402
from pod.log.inbox import Command, post  # noqa: E402
from pod.operations import clear  # noqa: E402
from pod.peek import glance  # noqa: E402
from pod.reading import SessionReader  # noqa: E402
from pod.store.mounting import address, sweep  # noqa: E402
from pod.store.port import TTL  # noqa: E402
from worker.items import UserItem  # noqa: E402
from worker.models.base import Request  # noqa: E402
from worker.testing import ScriptedModel, call  # noqa: E402
from worker.testing import say as answer  # noqa: E402
from worker.testing.scripted import Step  # noqa: E402
from worker.tools import tool  # noqa: E402

TESTS = Path(__file__).resolve().parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}", "PYTHONWARNINGS": "ignore"}


def test_a_writer_killed_at_any_step_leaves_a_whole_pod_with_all_that_was_acknowledged(
    database: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "store.home_driver", database, str(tmp_path)], capture_output=True, text=True,
        env=ENVIRONMENT, timeout=300, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    *failed, steps = done.stdout.splitlines()
    assert not failed, "\n".join(failed[-60:])
    assert int(steps.split()[1]) > 15


@pytest.fixture
def here(database: str, tmp_path: Path) -> Iterator[Path]:
    with machine(database, tmp_path / "here") as home:
        yield home


@pytest.fixture
def there(database: str, tmp_path: Path) -> Iterator[Path]:
    with machine(database, tmp_path / "there") as home:
        yield home


def _said(home: Path) -> str:
    return b"\n".join(line.body for line in SessionReader(PodFolder(home, "a")).lines()).decode()


def test_what_one_machine_writes_another_reads_and_goes_on_with(here: Path, there: Path) -> None:
    session = create(here)
    say(session, "from here")
    session.writer.sync_now()
    assert "from here" in _said(there)
    assert glance(PodFolder(there, "a")).busy
    say(session, "more from here")
    session.close()
    session = reopen(there)
    say(session, "from there")
    session.close()
    for home in (here, there):
        said = _said(home)
        assert said.index("from here") < said.index("more from here") < said.index("from there")
        assert list(pod_names(home)) == ["a"]
        assert not glance(PodFolder(home, "a")).busy


def test_a_record_that_no_sync_acknowledged_is_nowhere_else(here: Path, there: Path) -> None:
    session = create(here)
    say(session, "only a thought")
    assert "only a thought" in _said(here)
    assert "only a thought" not in _said(there)
    session.close()  # syncs
    assert "only a thought" in _said(there)


def test_b069_a_pod_that_lives_elsewhere_is_busy_and_says_where(here: Path, there: Path, database: str) -> None:
    session = create(here)
    with psycopg.connect(database) as connection:
        connection.execute(
            "UPDATE pod.session SET owner = 'process 7 on faraway since 2026-01-01T00:00:00Z (abc/7/9 def)'"
        )
    with pytest.raises(PodBusy, match="in use by process 7 on faraway since 2026-01-01T00:00:00Z"):
        reopen(there)
    with pytest.raises(StoreError, match="faraway"):
        say(session, "late")
        session.close()


def test_b069_a_writer_that_was_taken_over_stops_with_who_did_it_and_nothing_of_it_counts(
    here: Path, there: Path, database: str
) -> None:
    old = create(here)
    say(old, "acknowledged")
    old.writer.sync_now()
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE pod.session SET beat = beat - interval '1 hour'")
    new = reopen(there)
    say(old, "from the dead")
    with pytest.raises(StoreError, match=rf"process {os.getpid()} on .* took the session 'a' over.*goes on there"):
        old.writer.sync_now()
    with pytest.raises(StoreError):
        say(old, "again")
    with pytest.raises((StoreError, OSError)):
        old.folder.put_blob("a blob of the dead")
    old.folder.unlock()
    say(new, "from the living")
    new.close()
    assert "acknowledged" in _said(there) and "from the living" in _said(there)
    assert "from the dead" not in _said(there)
    assert not [each for each in examine(there).pods if each.findings]


FROZEN = """
import sys
from pathlib import Path
from log.logs import batch, create, say
from store.home_rig import machine
with machine(sys.argv[1], Path(sys.argv[2])) as home:
    session = create(home)
    print("made", flush=True)
    sys.stdin.readline()
    say(session, "from the zombie")
    try:
        session.writer.sync_now()
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""


def test_a_process_that_was_frozen_and_taken_over_writes_nothing_when_it_wakes(
    database: str, there: Path, tmp_path: Path
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", FROZEN, database, str(tmp_path / "zombie")], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    try:
        assert child.stdout is not None and child.stdout.readline() == "made\n"
        child.send_signal(signal.SIGSTOP)
        with pytest.raises(PodBusy):
            reopen(there)
        with psycopg.connect(database) as connection:  # its time goes by, on the database's clock
            connection.execute("UPDATE pod.session SET beat = beat - interval '31 seconds'")
        session = reopen(there)
        child.send_signal(signal.SIGCONT)
        out, _ = child.communicate("\n", timeout=60)
        assert out.startswith("StoreError") and "took the session 'a' over" in out
        say(session, "after it")
        session.close()
        assert "from the zombie" not in _said(there) and "after it" in _said(there)
    finally:
        child.kill()
        child.communicate()


def test_a_server_that_is_killed_in_mid_run_loses_nothing_and_the_writer_goes_on(
    postgres: Server, here: Path, there: Path
) -> None:
    session, half = create(here), threading.Event()

    def write() -> None:
        for n in range(80):
            say(session, f"message {n}.")
            session.writer.sync_now()
            if n == 30:
                half.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert half.wait(60)
    postgres.restart()
    writer.join(120)
    session.close()
    said = _said(there)
    assert all(f"message {n}." in said for n in range(80))
    lines = list(SessionReader(PodFolder(there, "a")).lines())
    assert [line.seq for line in lines] == [*range(1, len(lines) + 1)]


def test_large_contents_come_when_they_are_read_and_not_before(here: Path, there: Path) -> None:
    text, artifact = "a text of its own " * 1000, "an artifact " * 1000
    session = create(here)
    label = session.folder.put_blob(text)
    session.folder.artifacts.mkdir()
    (session.folder.artifacts / "x.txt").write_text(artifact)
    session.close()
    folder = PodFolder(there, "a")
    folder.pointer()
    waiting = {Path(path).name for path in absent if path.startswith(str(there))}
    assert {label, "x.txt"} <= waiting and "pod.json" not in waiting
    assert (folder.artifacts / "x.txt").stat().st_size == len(artifact)
    assert folder.blob(label) == text
    assert str(folder.path / "blobs" / label) not in absent
    opened = reopen(there)
    assert (folder.artifacts / "x.txt").read_text() == artifact
    opened.close()


def test_the_copy_is_for_its_user_alone(here: Path) -> None:
    create(here).close()
    for path in (here / "pods").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.anyio
async def test_a_message_that_another_machine_leaves_reaches_the_next_request(
    here: Path, there: Path, tmp_path: Path
) -> None:
    seen: list[str] = []
    served = count(1)

    def play(request: Request) -> Step:
        number = next(served)
        seen[:] = [item.text for item in request.items if isinstance(item, UserItem)]
        if "from afar" in seen:
            return answer("got it")
        if number == 2:
            post(PodFolder(there, "p"), Command(kind="send", args={"text": "from afar"}))
        return call("look", n=number) if number < 400 else answer("nothing came")

    @tool(name="look", effect="read")
    async def look(n: int) -> str:
        """Looks."""
        return f"looked {n} times"

    model = ScriptedModel([play], strict=False, name="offline:agent")
    made = Manifest.model_validate({"tools": {"enable": []}})
    async with Pod.open(made, name="p", home=here, cwd=tmp_path, model=model, tools=[look]) as pod:
        result = await pod.run("wait for it")
    assert result.text == "got it" and next(served) == 4  # the request after the one while which it was left
    assert seen == ["wait for it", "from afar"]
    folder = PodFolder(there, "p")
    folder.pointer()
    assert not list(folder.inbox.glob("*.json"))


def test_a_removed_pod_is_gone_everywhere_and_its_name_is_free(here: Path, there: Path) -> None:
    from pod.removing import remove

    session = create(here)
    say(session, "the first")
    session.close()
    assert "the first" in _said(there)
    remove(there, "a")
    with pytest.raises(PodNotFound):
        reopen(here)
    assert not list(pod_names(here)) and not list(pod_names(there))
    session = create(here)
    say(session, "the second")
    session.close()
    assert "the first" not in _said(there) and "the second" in _said(there)


def test_damage_in_the_database_is_found_and_repaired_for_all(here: Path, there: Path, database: str) -> None:
    session = create(here)
    for text in ("before", "the damaged one", "after"):
        say(session, text)
        session.writer.sync_now()
    session.close()
    with psycopg.connect(database) as connection:
        statement = (
            "UPDATE pod.entry SET body = overlay(body PLACING 'XXXX'::bytea FROM 30) WHERE position(%b IN body) > 0"
        )
        assert connection.execute(statement, [b"the damaged one"]).rowcount == 1
    (found,) = examine(there).pods
    assert [finding.code for finding in found.findings] == ["damage"]
    repair(there, "a")
    for home in (here, there):
        said = _said(home)
        assert (
            "before" in said and "after" in said and "repaired" not in [f.code for f in examine(home).pods[0].findings]
        )
    session = reopen(here)
    say(session, "goes on")
    session.close()
    assert "goes on" in _said(there)
    assert list((PodFolder(there, "a").path / "quarantine").iterdir())


@pytest.mark.anyio
async def test_a_cleared_pod_is_cleared_everywhere_its_artifacts_aside(here: Path, there: Path) -> None:
    session = create(here)
    batch(session, "c1", "see artifact:c1-output.txt")
    session.folder.artifacts.mkdir()
    (session.folder.artifacts / "c1-output.txt").write_text("all of it")
    session.close()
    changed = await clear(here, "a")
    folder = PodFolder(there, "a")
    assert folder.pointer().segment == changed.segment
    assert not list(folder.artifacts.glob("*"))
    (aside,) = folder.path.glob("artifacts-before-*/*")
    assert present(aside).read_text() == "all of it"


# -- the command line ----------------------------------------------------------------------------------------------


def _pod(tmp_path: Path, home: str, *words: str, code: int = 0) -> str:
    state = tmp_path / "state"
    environment = {**ENVIRONMENT, "POD_HOME": home, "XDG_STATE_HOME": str(state)}
    done = subprocess.run(
        [sys.executable, "-m", "pod", *words], capture_output=True, text=True, env=environment, cwd=tmp_path,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    assert not list((state / "pod" / "shared").glob("*-*")), "a copy was left behind"
    return done.stdout + done.stderr


def test_the_commands_work_on_a_pod_in_the_database_and_move_it_between_homes(database: str, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for n in range(3):
        (tmp_path / "src" / f"m{n}.py").write_text(f'"""Module {n}."""\n')
    task = "Survey the files in src. Report to report.md."
    assert "pod s: finished" in _pod(tmp_path, database, "run", "offline-survey", "--name", "s", task)
    assert re.search(r"^s +finished", _pod(tmp_path, database, "ls"), re.M)
    _pod(tmp_path, database, "export", "s", "-o", "s.pod")
    local = str(tmp_path / "local")
    assert "imported" in _pod(tmp_path, local, "import", "s.pod")
    assert "imported" in _pod(tmp_path, database, "import", "s.pod", "--name", "t")
    said = _pod(tmp_path, database, "doctor")
    assert "s: fine" in said and "t: fine" in said
    assert '"status": "finished"' in _pod(tmp_path, local, "show", "s", "--json")
    said = _pod(tmp_path, database, "show", "nothing", code=2)
    assert "in postgresql://127.0.0.1:" in said


def test_a_database_that_is_not_there_is_an_error_in_one_line_without_the_password(tmp_path: Path) -> None:
    said = _pod(tmp_path, "postgresql://me:hunter2@127.0.0.1:1/db", "ls", code=1)
    assert "postgresql://127.0.0.1:1/db can't be reached" in said and "hunter2" not in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("home", "said"),
    [
        ("postgresql://[", "no address of a database"),
        ("postgresql://me:hunter2@secret-part@127.0.0.1:1/db", "written as %40"),
        ("postgresql://me:hunter2/secret-part@127.0.0.1:1/db", "written as %40"),
        ("postgresql://me:hunter2:secret-part@127.0.0.1:1/db", "can't be reached"),  # libpq's own: a colon in a password is one
        ("postgresql://me:hunter2%secret-part@127.0.0.1:1/db", "written as %40"),
        ("postgresql://me:hunter2@127.0.0.1:secret-part/db", "written as %40"),
        ("postgresql://me:hunter2@127.0.0.1:1/db?secret-part=1", "what libpq knows, and pod_lease"),
        ("POSTGRESQL://me:hunter2@127.0.0.1:1/secret-part", "neither a folder nor a database"),
        ("mysql+driver://me:hunter2@127.0.0.1:1/secret-part", "begins with mysql+driver://"),
        ("postgresql://me:hunter2@127.0.0.1:1/secret-part?pod_lease=0", "one pod_lease, of 1 to 86400 seconds, not '0'"),
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_told_without_what_may_be_secret(tmp_path: Path, home: str, said: str) -> None:
    code = 1 if "reached" in said else 2
    told = _pod(tmp_path, home, "ls", code=code)
    assert said in told and "hunter2" not in told and "secret-part" not in told and len(told.splitlines()) == 1, told
    assert not any(path.name.lower().startswith(("postgres", "mysql")) for path in tmp_path.iterdir()), (
        "no folder of it"
    )


def test_what_the_address_says_beside_the_lease_stays() -> None:
    assert address("postgresql://h/d?a=1&pod_lease=12.5&b=2") == ("postgresql://h/d?a=1&b=2", 12.5)
    assert address("postgresql://h/d?pod_lease=3") == ("postgresql://h/d", 3.0)
    assert address("postgresql://h/d?a=pod_lease=3") == ("postgresql://h/d?a=pod_lease=3", TTL)
    for given in ("", "abc", "1e3", "0.5", "99999999", "-1", "nan", "5&pod_lease=6"):
        with pytest.raises(UsageProblem, match="one pod_lease, of 1 to 86400 seconds"):
            address(f"postgresql://h/d?pod_lease={given}")


def test_what_a_role_may_not_do_and_tables_of_others_are_one_line(tmp_path: Path, database: str) -> None:
    task = "Survey the files in src. Report to report.md."
    assert "pod s: finished" in _pod(tmp_path, database, "run", "offline-survey", "--name", "s", task)
    role = f"r{uuid.uuid4().hex[:8]}"
    with psycopg.connect(database, autocommit=True) as connection:
        _pod(tmp_path, database, "queue", "ls")
        for statement in (
            f"CREATE ROLE {role} LOGIN",
            f"GRANT USAGE ON SCHEMA pod, pod_engine TO {role}",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA pod, pod_engine TO {role}",
        ):
            connection.execute(statement.encode())
        reader = database.replace("postgres@", f"{role}@")
        assert re.search(r"^s +finished", _pod(tmp_path, reader, "ls"), re.M)
        for words in (
            ("send", "s", "hello"),
            ("doctor", "s", "--repair"),
            ("queue", "limit", "q", "--together", "2"),
            ("node", "--queue", "q", "--until-empty", "-q"),
        ):
            told = _pod(tmp_path, reader, *words, code=1)
            assert "refuses what is asked of it: permission denied for" in told, told
            assert "traceback" not in told.lower() and "SQL" not in told and len(told.splitlines()) == 1, told
        connection.execute("DROP SCHEMA pod CASCADE; CREATE SCHEMA pod; CREATE TABLE pod.session (mine int)")
        told = _pod(tmp_path, database, "ls", code=1)
        assert 'refuses what is asked of it: relation "session" already exists' in told and "traceback" not in told
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_copies_of_dead_processes_are_removed_and_those_in_use_stay(tmp_path: Path) -> None:
    for name in ("1-dead", "2-alive"):
        (tmp_path / name / "pods").mkdir(parents=True)
        (tmp_path / name / "lock").touch()
    with (tmp_path / "2-alive" / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["2-alive"]


@pytest.mark.parametrize(
    ("url", "plain", "ttl"),
    [
        ("postgresql://h/d", "postgresql://h/d", 30.0),
        ("postgresql://h/d?pod_lease=4", "postgresql://h/d", 4.0),
        ("postgresql://h/d?pod_lease=2.5&sslmode=require", "postgresql://h/d?sslmode=require", 2.5),
        ("postgresql://h/d?sslmode=require&pod_lease=4", "postgresql://h/d?sslmode=require", 4.0),
    ],
)
def test_the_seconds_of_a_lease_stand_in_the_address(url: str, plain: str, ttl: float) -> None:
    assert address(url) == (plain, ttl)
