"""A contestant that takes no core: a row for every `--pause` seconds, in groups, from a child of its command's process.

Run as `python fake_contestant.py DIRECTORY PAUSE GROUP [STEPS]`: it ends with exit code 3 after so many steps.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

if "--child" not in sys.argv:
    sys.exit(subprocess.run([sys.executable, __file__, "--child", *sys.argv[1:]]).returncode)

directory, pause, group = Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
last = int(sys.argv[5]) if len(sys.argv) > 5 else 0
began = time.perf_counter()
rows: list[str] = []
step = 0
while True:
    time.sleep(pause)
    step += 1
    now = time.perf_counter()
    row = {"step": step, "examples": 32 * step, "tokens": 1000 * step, "seconds": now - began, "clock": now}
    rows.append(json.dumps(row) + "\n")
    if len(rows) == group or step == 1:
        with (directory / "metrics.jsonl").open("a") as file:
            file.write("".join(rows))
        rows = []
    if step == last:
        sys.exit(3)
