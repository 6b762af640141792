"""Findings of a diagnosis: the check of a tensor, the cause of a difference, and the stage that collects both.

A diagnosis compares two training runs: A is the reference, and B is compared with A. A stage compares one part of their
training, such as the gradients.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from common.diagnose.rounding import rounding_tolerance
from common.diagnose.value_summary import ValueSummary, summarize_values
from common.map.array_differences import relative_difference

EQUAL, DIFFERS, INHERITED, NOT_COMPARED = "equal", "differs", "inherited", "not compared"
# Confirmed causes that explain no other tensors, because training does not compute with moving statistics
PARTIAL_CAUSES = ("added_variables", "moving_statistics", "biased_variance")
# Causes that follow from the formulas of the frameworks, so that no line of a script is wrong
FRAMEWORK_CAUSES = ("epsilon_place", "rate_inside_velocity", "repeated_indices", "decay_in_loss", "clipping_norm")
SHAPE_OF_OUTPUTS = "shape_of_outputs"  # name of a cause
WHOLE_TENSOR = 1.0  # a relative tolerance that allows any difference up to the tensor's own norm
LISTED_TENSORS = 3  # number of tensors that a note lists by name


@dataclass(frozen=True)
class TensorCheck:
    """Comparison of one tensor of A with its counterpart in B.

    Attributes:
        tensor: Name of the tensor in reports.
        difference: Norm of the difference, relative to the tensor's norm; infinite if the two cannot be compared.
        noise: Difference that rounding alone causes, as it was measured or estimated, relative to the tensor's norm.
        may_begin_here: True if a difference of this tensor would begin at this stage; False if the tensor is computed
            from tensors that differ already, so that the stage inherits the difference.
        summary: Statistics and histograms of both arrays, if they differ.
        precision: Precision in which the two are compared.
    """

    tensor: str
    difference: float
    noise: float = 0.0
    may_begin_here: bool = True
    summary: ValueSummary | None = field(default=None, repr=False)
    precision: str = "float64"

    @property
    def tolerance(self) -> float:
        """The largest relative difference that rounding explains."""
        return rounding_tolerance(self.noise, self.precision)

    @property
    def differs(self) -> bool:
        """Return whether the difference is larger than rounding explains."""
        return self.difference > self.tolerance

    @property
    def may_hide_any(self) -> bool:
        """Return whether rounding may hide any difference up to the norm of the tensor."""
        return self.tolerance >= WHOLE_TENSOR

    @property
    def begins_here(self) -> bool:
        """Return whether the tensor differs and the difference begins at this stage."""
        return self.differs and self.may_begin_here


@dataclass(frozen=True)
class Explanation:
    """Reason for a difference between two arrays, before it becomes a cause of a stage.

    Attributes:
        cause: Name of the cause in diagnosis.json.
        sentence: The reason, for a reader of the report.
        confirmed: Whether a computation reproduced the difference exactly.
        side: The faulty run: "a" or "b".
    """

    cause: str
    sentence: str
    confirmed: bool = True
    side: str = "b"


@dataclass(frozen=True)
class Cause:
    """Cause of a difference between the sides, as diagnosis.json stores it.

    Attributes:
        cause: Name of the cause.
        side: The faulty run: "a" or "b".
        stage: Name of the stage that the cause belongs to.
        tensor: Name of the tensor that differs.
        sentence: Description for a reader.
        confirmed: Whether a computation reproduced the difference exactly.
    """

    cause: str
    side: str
    stage: str
    tensor: str
    sentence: str
    confirmed: bool


@dataclass
class Stage:
    """One stage of the diagnosis with its checks and causes.

    Attributes:
        name: Name in reports, such as "activations".
        checks: Comparisons of tensors.
        causes: Causes of the differences that begin at this stage.
        note: Sentence for the report about what is not compared, and why.
        omission: Reason why the stage, or some of its steps, could not be compared.
        precision: Default precision in which `compare_arrays` compares the stage's tensors.
    """

    name: str
    checks: list[TensorCheck] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)
    note: str = ""
    omission: str = ""
    precision: str = "float64"

    @property
    def verdict(self) -> str:
        """DIFFERS if a difference begins here, INHERITED if one began earlier; otherwise EQUAL or NOT_COMPARED.

        NOT_COMPARED: the stage has no checks, or rounding could hide any difference in every tensor.
        """
        if self.causes or any(check.begins_here for check in self.checks):
            return DIFFERS
        if any(check.differs for check in self.checks):
            return INHERITED
        return NOT_COMPARED if all(check.may_hide_any for check in self.checks) else EQUAL

    @property
    def rounding_note(self) -> str:
        """Note that names the tensors in which rounding may hide any difference; empty if there are none.

        It is also empty if the stage inherits a difference, which is then in these tensors, too.
        """
        names = [check.tensor for check in self.checks if check.may_hide_any]
        if not names or self.verdict == INHERITED:
            return ""
        count = len(names) - LISTED_TENSORS
        more = f" and {count} other{'s' if count > 1 else ''}" if count > 0 else ""
        listed = ", ".join(names[:LISTED_TENSORS]) + more
        return f"not compared in {self.precision}, because they contain little but rounding errors: {listed}"

    @property
    def worst_check(self) -> TensorCheck | None:
        """The check with the largest difference, among those whose difference begins here if there are any."""
        checks = [check for check in self.checks if check.begins_here] or self.checks
        return max(checks, key=lambda check: check.difference, default=None)

    def compare_arrays(
        self,
        tensor: str,
        a: np.ndarray,
        b: np.ndarray,
        noise: float = 0.0,
        *,
        may_begin_here: bool = True,
        min_norm: float = 0.0,
        precision: str | None = None,
    ) -> TensorCheck:
        """Add a check of two arrays of one shape. Elements that are NaN in both are equal.

        Args:
            tensor: Name of the tensor in reports.
            a: Array of A.
            b: Array of B.
            noise: Relative difference that rounding alone causes.
            may_begin_here: As in `TensorCheck`: False if the stage would inherit a difference.
            min_norm: Norm to which the difference is relative if the arrays' norms are smaller.
            precision: Precision of the comparison, if it is not the stage's.
        """
        is_compared = ~(np.isnan(a) & np.isnan(b))
        difference = (
            relative_difference(a, b, min_norm)
            if is_compared.all()
            else relative_difference(a[is_compared], b[is_compared], min_norm)
        )
        check = TensorCheck(tensor, difference, noise, may_begin_here, precision=precision or self.precision)
        if check.differs:
            check = replace(check, summary=summarize_values(a, b))
        self.checks.append(check)
        return check

    def omit(self, reason: str, extent: str = NOT_COMPARED) -> None:
        """Note that this stage, or a part of it, could not be compared. Then the diagnosis cannot report equality.

        The checks that the stage has still decide its verdict.

        Args:
            reason: The reason, such as "the initial weights differ".
            extent: Text that names the part that is not compared.
        """
        notes = [*filter(None, [self.note]), f"{extent}: {reason}"]
        self.omission, self.note = reason, "; ".join(notes)

    def add_mismatch(self, tensor: str, may_begin_here: bool = True) -> None:
        """Add the check of a tensor that counts as different without numbers, such as one that a run lacks."""
        self.checks.append(TensorCheck(tensor, np.inf, may_begin_here=may_begin_here))

    def add_cause(self, cause: str, side: str, tensor: str, sentence: str, confirmed: bool = True) -> None:
        """Add a cause of this stage."""
        self.causes.append(Cause(cause, side, self.name, tensor, sentence, confirmed))

    def add_explanation(self, tensor: str, explanation: Explanation, prefix: str = "") -> None:
        """Add an explanation of a tensor's difference as a cause; its sentence starts with `prefix`."""
        sentence = prefix + explanation.sentence
        self.add_cause(explanation.cause, explanation.side, tensor, sentence, explanation.confirmed)

    def has_cause_of(self, side: str, causes: Sequence[str] | None = None) -> bool:
        """Check whether the stage has a cause of this side: any cause if `causes` is None, or one of these names."""
        return any(known.side == side and (causes is None or known.cause in causes) for known in self.causes)
