import numpy as np

from common.versions import find_versions


def test_versions_of_what_is_not_installed_are_left_out() -> None:
    assert find_versions(["numpy", "no-such-package"]) == {"numpy": np.__version__}
