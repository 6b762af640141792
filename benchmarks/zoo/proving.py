"""Proof of a pair: both models in processes that prove all pairs, because a process imports its framework for long."""

from contextlib import ExitStack
from types import TracebackType

from benchmarks.zoo.pairs import ZooPair
from benchmarks.zoo.result import ZooResult
from common.config.strategies import PACKAGES
from common.errors import UserError
from common.map.differing_settings import describe_settings
from common.map.input_specs import parse_input_spec
from common.map.pair_models import PairedModels, PairingRequest, pair_models
from common.map.side import Side
from common.map.unmatched import summarize_unmatched


class Prover:
    """The processes of both frameworks."""

    def __init__(self) -> None:
        """Start the processes."""
        self._start()

    def _start(self) -> None:
        self.stack = ExitStack()
        self.sides = {name: self.stack.enter_context(Side(PACKAGES[name], device="cpu")) for name in ("torch", "tf")}

    def prove(self, pair: ZooPair) -> ZooResult:
        """Pair and prove both models."""
        inputs = {name: parse_input_spec(name, text) for name, text in pair.inputs.items()}
        try:
            models = pair_models(self.sides["torch"], self.sides["tf"], PairingRequest(pair.torch, pair.keras, inputs))
        except UserError as error:
            self.stack.close()  # a process may have ended
            self._start()
            missing = "No module named" in str(error)
            return ZooResult(skipped=str(error)) if missing else ZooResult(differences=[str(error)])
        refused = [*models.torch_description.unsupported, *models.keras_description.unsupported]
        proof = models.proof
        return ZooResult(
            paired=models.parameter_map.is_complete,
            proven=models.proven,
            differences=refused if models.proven else list_differences(models),
            notes=proof.notes if proof else [],
            proof_difference=max(proof.measured.values(), default=None) if proof else None,
        )

    def __enter__(self) -> "Prover":
        """Return this object."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes."""
        self.stack.__exit__(kind, error, trace)


def list_differences(models: PairedModels) -> list[str]:
    """Return sentences that say why two models are not proven to be the same."""
    parameter_map, errors = models.parameter_map, models.proof.errors if models.proof else []
    unmatched = summarize_unmatched(parameter_map, models.torch_description, models.keras_description)
    if models.agree_without_unmatched:
        side = "PyTorch" if parameter_map.unmatched_torch else "Keras"
        names = ", ".join([*parameter_map.unmatched_torch, *parameter_map.unmatched_keras])
        unmatched.insert(0, f"only {side} has {names}; with zeros there, the outputs are the same")
    return [*describe_settings(parameter_map), *errors, *unmatched]
