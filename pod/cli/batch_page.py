"""The report of a batch: one page of HTML that asks nothing of anyone, and runs nothing."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from html import escape
from typing import Any, cast

from pod.batch.results import Row, grade_error, grade_of
from pod.batch.summary import Summary
from pod.cli.text import money, share, span
from worker.text import visible

TEXT_MOST = 4_000
"""Characters of a task's answer or error that are shown."""

ROWS_MOST = 10_000
"""Tasks in the table; those that did not finish come first, the rest is counted."""

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --sheet: #f5f6f8; --text: #1b1f24; --soft: #57606a; --line: #d0d7de;
  --good: #2c6e2f; --bad: #b42318; --wait: #8a5a00; --accent: #0b5cad; }
@media (prefers-color-scheme: dark) { :root { --back: #0f1317; --sheet: #181d23; --text: #e6e9ed; --soft: #a3acb6; --line: #39424c;
  --good: #86c774; --bad: #ff8a7d; --wait: #e2b450; --accent: #7db7f5; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 0 16px 32px; background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; }
dl { display: flex; flex-wrap: wrap; gap: 6px 28px; }
dt { color: var(--soft); font-size: .8rem; }
dd { margin: 0; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
caption { text-align: left; color: var(--soft); padding: 8px 0; }
th, td { text-align: left; vertical-align: top; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.said { min-width: 20rem; overflow-wrap: anywhere; }
td .grade { color: var(--soft); font-size: .85rem; }
summary { cursor: pointer; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--sheet); padding: 8px; margin: 4px 0;
  font: 13px/1.5 ui-monospace, Menlo, Consolas, monospace; }
.finished { color: var(--good); } .failed { color: var(--bad); } .paused, .limit, .cancelled, .yielded { color: var(--wait); }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
"""


def page(summary: Summary, rows: Iterable[Row]) -> str:
    """The whole page; what tasks said stands in it as text."""
    ordered = sorted(rows, key=lambda row: (row["status"] == "finished", row["index"]))
    shown = ordered[:ROWS_MOST]
    graded = any(row.get("grade") for row in shown)
    heads = [
        "task",
        "pod",
        "status",
        *(["grade"] if graded else []),
        "requests",
        "compactions",
        "tokens in",
        "cost",
        "time",
        "answer or error",
    ]
    numbers = {"grade", "requests", "compactions", "tokens in", "cost", "time"}
    style = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'"
    title = f"Batch {_text(summary.batch)}"
    first = "What did not finish comes first. " if any(row["status"] != "finished" for row in ordered) else ""
    left_out = f" {len(ordered) - len(shown):,} more are in the file of results." if len(ordered) > len(shown) else ""
    return "\n".join(
        [
            "<!DOCTYPE html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">', '<meta name="referrer" content="no-referrer">',
            f"<title>{title}</title>", f"<style>{_STYLE}</style>", "</head>", "<body>", f"<h1>{title}</h1>", "<dl>",
            *(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in facts(summary)),
            "</dl>", '<div class="scroll">', "<table>",
            f"<caption>{first}<code>pod show POD</code> and <code>pod inspect POD --html FILE</code> tell more of one.{left_out}</caption>",
            "<thead><tr>",
            *(f'<th scope="col"{_number(head in numbers)}>{head}</th>' for head in heads),
            "</tr></thead>", "<tbody>", *(_line(row, graded=graded) for row in shown), "</tbody>", "</table>", "</div>", "</body>", "</html>", "",
        ]
    )  # fmt: skip


def facts(summary: Summary) -> list[tuple[str, str]]:
    """The figures of a batch, each with its name, as the page and the terminal show them."""
    s = summary
    found = [("tasks", f"{s.tasks:,}"), *((status, f"{many:,}") for status, many in sorted(s.by_status.items()))]
    if s.left:
        found.append(("without an end", f"{s.left:,}"))
    found += [
        ("requests", f"{s.requests:,}"),
        ("compactions", f"{s.compactions:,}"),
        ("tokens in", f"{s.input_tokens:,} ({share(s.cached_tokens, s.input_tokens)} cached)"),
        ("tokens out", f"{s.output_tokens:,}"),
        ("cost", money(s.cost_usd)),
    ]
    if s.grade is not None:
        found.append(("mean grade", f"{s.grade:.3f} of {s.graded:,}"))
    if s.grade_errors:
        found.append(("not graded", f"{s.grade_errors:,}"))
    if s.seconds:
        found.append(("time", span(s.seconds)))
    return found


def _line(row: Row, *, graded: bool) -> str:
    usage = cast("dict[str, Any]", row.get("usage") or {})
    cells = [
        f"<td>{_text(row['id'])}</td>",
        f"<td>{_text(row['pod'])}</td>",
        f'<td class="{_text(row["status"])}">{_text(row["status"])}</td>',
    ]
    figures = [
        *([_score(row)] if graded else []), f"{row.get('requests') or 0:,}", f"{row.get('compactions') or 0:,}",
        f"{usage.get('input_tokens') or 0:,}", money(row.get("cost_usd")), span(float(row.get("duration_s") or 0.0)),
    ]  # fmt: skip
    cells += [f'<td class="number">{_text(figure)}</td>' for figure in figures]
    return f'<tr>{"".join(cells)}<td class="said">{_said(row)}{_told(row)}</td></tr>'


def _told(row: Row) -> str:
    """What a grader said beside the score, or why there is none."""
    if ungraded := grade_error(row):
        return f'<div class="failed">no grade: {_text(ungraded[:TEXT_MOST])}</div>'
    more = {key: value for key, value in grade_of(row).items() if key != "score"}
    if not more:
        return ""
    text = json.dumps(more, ensure_ascii=False)
    return f'<div class="grade">{_text(text[:TEXT_MOST])}</div>'


def _said(row: Row) -> str:
    output = row.get("output")
    value = (
        row.get("error")
        or (row.get("text") if output is None else json.dumps(output, ensure_ascii=False, indent=2))
        or ""
    )
    text = str(value).strip()
    first = text.split("\n", 1)[0][:120]
    if text == first:
        return _text(text)
    more = f"\n[{len(text) - TEXT_MOST:,} characters more]" if len(text) > TEXT_MOST else ""
    return f"<details><summary>{_text(first)}</summary><pre>{_text(text[:TEXT_MOST] + more)}</pre></details>"


def _score(row: Row) -> str:
    score = grade_of(row).get("score")
    return "none" if grade_error(row) else "" if score is None else f"{float(score):.3g}"


def _number(is_one: bool) -> str:
    return ' class="number"' if is_one else ""


def _text(value: object) -> str:
    return escape(visible(str(value)))
