"""PyTorch's models of the zoo with an encoder and a decoder: architectures of transformers."""

import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

from benchmarks.zoo.pairs import CLASSES
from benchmarks.zoo.text_torch import HEADS, INNER_WIDTH, LAYERS, POSITIONS, VOCABULARY, WIDTH

MELS = 8


class SequenceClassifier(nn.Module):
    """An encoder and decoder with the mean over the decoder's tokens and a linear layer on top."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Create the linear layer."""
        super().__init__()
        self.model = model
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, encoder_ids: Tensor, decoder_ids: Tensor) -> Tensor:
        """Return logits [n, CLASSES]."""
        hidden = self.model(input_ids=encoder_ids, decoder_input_ids=decoder_ids).last_hidden_state
        return self.head(hidden.mean(dim=1))


class AudioClassifier(SequenceClassifier):
    """The same for an encoder that reads a spectrogram [n, frames, MELS]."""

    def forward(self, features: Tensor, decoder_ids: Tensor) -> Tensor:
        """Return logits [n, CLASSES]."""
        hidden = self.model(input_features=features.transpose(1, 2), decoder_input_ids=decoder_ids).last_hidden_state
        return self.head(hidden.mean(dim=1))


def bart() -> nn.Module:
    """Return BART."""
    config = transformers.BartConfig(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=INNER_WIDTH,
        decoder_ffn_dim=INNER_WIDTH,
        max_position_embeddings=POSITIONS,
        dropout=0.0,
        attention_dropout=0.0,
        use_cache=False,
    )
    return SequenceClassifier(transformers.BartModel(config))


def _build_t5(feed_forward: str) -> nn.Module:
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=WIDTH // HEADS,
        d_ff=INNER_WIDTH,
        num_layers=LAYERS,
        num_heads=HEADS,
        dropout_rate=0.0,
        feed_forward_proj=feed_forward,
        use_cache=False,
    )
    return SequenceClassifier(transformers.T5Model(config))


def t5() -> nn.Module:
    """Return T5 with relative position biases."""
    return _build_t5("relu")


def t5_gated() -> nn.Module:
    """Return T5 1.1 with gated feed-forward layers."""
    return _build_t5("gated-gelu")


def whisper() -> nn.Module:
    """Return Whisper."""
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=MELS,
        d_model=WIDTH,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=INNER_WIDTH,
        decoder_ffn_dim=INNER_WIDTH,
        max_source_positions=16,
        max_target_positions=POSITIONS,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return AudioClassifier(transformers.WhisperModel(config))
