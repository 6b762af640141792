from common.training.strategy import Evaluation


def test_means_of_an_evaluation() -> None:
    evaluation = Evaluation(summed_loss=3.0, correct=9.0, count=12)
    assert (evaluation.loss, evaluation.accuracy) == (0.25, 0.75)
