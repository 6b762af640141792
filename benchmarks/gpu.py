"""Compare the curves of the CPU and of GPUs, and measure how fast GPUs train: python -m benchmarks.gpu [key=value ...].

The model of the speed measurement has the size of BERT-base. The arguments are overrides of this measurement, such as
data=files data.train=... for examples of other lengths.
PyTorch, transformers and some small packages (docs/performance.md names them) must be installed, TensorFlow need not.
Nothing is downloaded: the corpus is built in, the weights are random.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from common.config.command_line import report_user_errors
from common.errors import UserError
from common.hardware import count_visible_gpus
from common.run_module import module_command

CURVE = ("strategy=single", "model=bert_mini", "schedule=constant", "optimizer.max_grad_norm=null", "train.steps=60")
BERT_BASE = (
    "model=bert_small",
    "model.layers=12",
    "model.hidden_size=768",
    "model.heads=12",
    "model.intermediate_size=3072",
)
SPEED = (*BERT_BASE, "train.precision=bfloat16", "train.global_batch_size=128")
CONTESTANTS = "bench.contestants=[torch_single,torch_dp,torch_ddp,plain_ddp]"


@report_user_errors(())
def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 1 if the curves differ or a command failed. An error of the user exits with 2."""
    if not count_visible_gpus():
        raise UserError("no GPU is visible here; see nvidia-smi and CUDA_VISIBLE_DEVICES")
    failed = 0
    with tempfile.TemporaryDirectory() as directory:
        for precision in ("float32", "float64"):
            runs = [str(Path(directory, f"{device}-{precision}")) for device in ("cpu", "gpu")]
            for run, environment in zip(runs, ({"CUDA_VISIBLE_DEVICES": ""}, {}), strict=True):  # the first has no GPU
                overrides = [*CURVE, f"train.precision={precision}", f"run_dir={run}"]
                failed |= _run("torch_impl.train", overrides, environment)
            failed |= _run("common.compare", [*runs, f"output={directory}", "--check"], {})
    failed |= _run("common.bench", [*SPEED, CONTESTANTS, "bench.reference=plain_ddp", *arguments], {})
    return int(failed)


def _run(module: str, arguments: Sequence[str], environment: dict[str, str]) -> bool:
    """Run a module. Return whether it failed."""
    return subprocess.run(module_command(module, *arguments), env={**os.environ, **environment}).returncode != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
