"""Reports: one file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import re

import htpy
from support.dashboard_data import varied_calls

from anaphora.dashboard.charts import spend_bars
from anaphora.dashboard.pages.overview import causes_card, headline
from anaphora.dashboard.past_calls.memory import MemoryCalls
from anaphora.dashboard.report import report_file
from anaphora.dashboard.values import ShownCall
from anaphora.dashboard.view import view_from_query

NOW = 1_795_871_100.0


def made() -> str:
    source = MemoryCalls()
    for number, call in enumerate(varied_calls(NOW)):
        source.add(ShownCall(id=str(number), call=call))
    overview = source.overview(view_from_query({"range": "month"}, NOW))
    sections = [
        ("Total", headline(overview.total)),
        ("Spend", spend_bars(overview.points)),
        ("Causes", causes_card(overview)),
        ("Names", htpy.p["<script>alert(1)</script>"]),
    ]
    return report_file("Spend of <November>", sections, NOW).decode()


def test_a_report_needs_no_other_file_and_runs_no_script() -> None:
    report = made()
    assert "<script" not in report
    assert not re.search(r'\s(src|href)="(?!#)', report)
    assert "url(" not in report
    assert "@import" not in report
    assert not [tag for tag in re.findall(r"<[a-z][^>]*>", report) if re.search(r"\son\w+=", tag)]


def test_only_the_style_inside_is_allowed() -> None:
    report = made()
    style = re.findall(r"<style>(.*?)</style>", report, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style[0].encode()).digest()).decode()
    policy = re.findall(r'Content-Security-Policy" content="([^"]*)"', report)[0]
    assert policy.startswith(f"default-src &#39;none&#39;; style-src &#39;sha256-{digest}&#39;")
    assert len(style) == 1


def test_a_report_names_its_time_and_its_sections() -> None:
    report = made()
    assert "2026-11-28 13:05 UTC" in report
    assert "<h1>Spend of &lt;November&gt;</h1>" in report
    headings = re.findall(r'<h2 class="report-heading">([^<]*)', report)
    assert headings == ["Total", "Spend", "Causes", "Names"]
