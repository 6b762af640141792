"""What the sizes of a PyTorch model do not show about the layout of its parameters."""

from dataclasses import dataclass

from common.map.embedding_rows import align_embedding_rows
from common.map.fused_projections import align_fused_projections
from common.map.sublayers import Sublayer


@dataclass(frozen=True)
class AssumedLayout:
    """An assumption about the layout of PyTorch's parameters.

    Attributes:
        by_head: Whether a fused projection computes query, key and value of the first head first, not all queries.
        rows_at_end: Whether a shorter embedding of Keras has the last rows of PyTorch's, not the first ones.
    """

    by_head: bool = False
    rows_at_end: bool = True

    def align(self, torch_sublayers: list[Sublayer], keras_sublayers: list[Sublayer]) -> list[Sublayer]:
        """Return PyTorch's sublayers split, joined and shortened as Keras's model has them."""
        aligned = align_fused_projections(torch_sublayers, keras_sublayers, self.by_head)
        return align_embedding_rows(aligned, keras_sublayers, self.rows_at_end)


USUAL_LAYOUT = AssumedLayout()
LAYOUTS = [AssumedLayout(by_head, rows_at_end) for by_head in (False, True) for rows_at_end in (True, False)]
