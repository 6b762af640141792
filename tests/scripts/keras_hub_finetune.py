"""Fine-tune a tiny drawn BERT classifier of KerasHub."""

import argparse

import keras
import keras_hub
import numpy as np

from tf_impl.record import FitRecorder


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--record")
    args = parser.parse_args()

    keras.utils.set_random_seed(42)
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32, max_sequence_length=12
    )
    classifier = keras_hub.models.BertTextClassifier(backbone, num_classes=3, preprocessor=None, dropout=0.1)
    optimizer = keras.optimizers.AdamW(5e-3, weight_decay=0.01)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    classifier.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

    rng = np.random.default_rng(0)
    lengths = rng.integers(4, 13, size=40)
    mask = (np.arange(12) < lengths[:, None]).astype("int32")
    features = {
        "token_ids": rng.integers(1, 100, size=(40, 12)) * mask,
        "segment_ids": np.zeros((40, 12), "int32"),
        "padding_mask": mask,
    }
    labels = rng.integers(0, 3, size=40)
    callbacks = [FitRecorder(args.record)] if args.record else []
    history = classifier.fit(features, labels, batch_size=8, epochs=2, callbacks=callbacks, verbose=0)
    for epoch, loss in enumerate(history.history["loss"]):
        print("epoch", epoch, "loss", loss, "accuracy", history.history["accuracy"][epoch])


if __name__ == "__main__":
    main()
