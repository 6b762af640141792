from common.training.strategy import Evaluation


def test_means_of_an_evaluation() -> None:
    evaluation = Evaluation(summed_loss=3.0, summed_metric=9.0, weight=12.0, count=10)
    assert (evaluation.loss, evaluation.metric) == (0.25, 0.75)
