"""A contestant that only sleeps. A child process writes a row every PAUSE seconds, in groups of GROUP rows.

Usage: `python fake_contestant.py DIRECTORY PAUSE GROUP [STEPS]`. It exits with code 3 after STEPS steps.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

if "--child" not in sys.argv:
    sys.exit(subprocess.run([sys.executable, __file__, "--child", *sys.argv[1:]]).returncode)

directory, pause, group_size = Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
last_step = int(sys.argv[5]) if len(sys.argv) > 5 else 0
started_at = time.perf_counter()
rows: list[str] = []
step = 0
while True:
    time.sleep(pause)
    step += 1
    now = time.perf_counter()
    row = {"step": step, "examples": 32 * step, "tokens": 1000 * step, "seconds": now - started_at, "clock": now}
    rows.append(json.dumps(row) + "\n")
    if len(rows) == group_size or step == 1:
        with (directory / "metrics.jsonl").open("a") as file:
            file.write("".join(rows))
        rows = []
    if step == last_step:
        sys.exit(3)
