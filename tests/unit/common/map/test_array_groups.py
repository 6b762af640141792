"""Groups of arrays that processes send at once."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from common.map.array_groups import GROUP_SIZE, group_by_size


@given(st.lists(st.integers(0, 2 * GROUP_SIZE)))
def test_groups_hold_all_names_and_are_small_unless_they_have_one_array(sizes: list[int]) -> None:
    by_name = {str(index): size for index, size in enumerate(sizes)}
    groups = list(group_by_size(by_name))
    assert [name for group in groups for name in group] == [*by_name]
    assert all(len(group) == 1 or sum(by_name[name] for name in group) <= GROUP_SIZE for group in groups)
    pairs = pairwise(groups)
    assert all(sum(by_name[name] for name in [*group, following[0]]) > GROUP_SIZE for group, following in pairs)
