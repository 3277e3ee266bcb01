"""What was measured is not measured again, and is shown."""

import json
from pathlib import Path

from rich.console import Console

from toolkit.bench.models.benchmark import MODES, run_bench, tables


def test_a_second_run_goes_on_from_the_lines_of_the_first(tmp_path: Path) -> None:
    lines = tmp_path / "models.jsonl"
    runs = {"ai-edge-litert": {"step_ms": 12.3, "peak_mib": 45.6}}
    full, head = ({"family": "Small", "mode": mode, "batch": 4} for mode in MODES)
    stored = [{**full, "gradient_error": 2e-6, "runtimes": runs}, {**head, "refused": "no rule."}]
    lines.write_text("".join(json.dumps(line) + "\n" for line in stored), encoding="utf-8")
    said: list[str] = []
    results = run_bench(families=["Small"], batch=4, steps=1, lines=lines, progress=said.append)
    assert (results, said) == (stored, [])
    console = Console(width=200, record=True)
    console.print(*tables(results))
    text = console.export_text()
    assert all(word in text for word in ("2e-06", "12", "46", "no rule."))
