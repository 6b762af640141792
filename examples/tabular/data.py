"""Data of diabetes patients, which scikit-learn comes with. Run python -m examples.tabular.data DIRECTORY"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes


def write(directory: Path) -> None:
    """Write train.npz and validation.npz: numbers float32 [n, 9], sex int64 [n], labels float32 [n], standardized."""
    patients, progression = load_diabetes(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(patients))
    columns = patients[order] / patients.std(0)
    arrays = {
        "numbers": np.delete(columns, 1, axis=1).astype(np.float32),
        "sex": (columns[:, 1] > 0).astype(np.int64),
        "labels": ((progression - progression.mean()) / progression.std())[order].astype(np.float32),
    }
    directory.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", slice(0, 352)), ("validation", slice(352, None))):
        np.savez(directory / f"{name}.npz", **{key: array[part] for key, array in arrays.items()})


if __name__ == "__main__":
    write(Path(sys.argv[1]))
