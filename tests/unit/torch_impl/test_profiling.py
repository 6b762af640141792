"""Tests of a profile of PyTorch as a Chrome trace."""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from torch_impl.profiling import profile


def test_trace_contains_what_runs_within_the_context(tmp_path: Path) -> None:
    path = tmp_path / "profile" / "rank-0.json.gz"
    torch.ones(3).sigmoid()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(torch.ones, 3).result()
        with profile(path):
            torch.ones(3, 3) @ torch.ones(3, 3)
            pool.submit(torch.ones(3).neg).result()
    with gzip.open(path) as file:
        events = {event["name"]: event for event in json.load(file)["traceEvents"]}
    assert events["aten::mm"]["dur"] > 0
    assert events["aten::neg"]["tid"] != events["aten::mm"]["tid"]
    assert "aten::sigmoid" not in events
