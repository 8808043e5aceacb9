"""Recurrent networks over tokens and sound."""

# mypy: allow-subclassing-any
from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["deepspeech2", "gnmt", "lstm_language_model"]


class _LanguageModel(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.drop = nn.Dropout(dropout)
        self.recurrent = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Any) -> Any:
        x, _ = self.recurrent(self.drop(self.embedding(tokens)))
        return self.head(self.drop(x))


def lstm_language_model(vocabulary: int, width: int, layers: int = 2, dropout: float = 0.2) -> Any:
    """Zaremba et al., 2014 (arXiv:1409.2329): 1,500 wide and 10,000 words is their large one."""
    return _LanguageModel(vocabulary, width, layers, dropout)


class _DeepSpeech(nn.Module):
    """Spectrogram of 161 frequencies, two strided convolutions, bidirectional LSTMs whose
    directions are added, a score for each letter and moment."""

    def __init__(self, width: int, layers: int, letters: int) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20, inplace=True),
            nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20, inplace=True),
        )
        given = [32 * 41] + [width] * (layers - 1)
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers))
        self.layers = nn.ModuleList(
            nn.LSTM(size, width, batch_first=True, bidirectional=True) for size in given
        )
        self.head = nn.Linear(width, letters, bias=False)

    def forward(self, sound: Any) -> Any:
        x = self.front(sound).flatten(1, 2).transpose(1, 2)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            y, _ = layer(x.float())  # in half precision a CPU would unroll it, a GPU would not
            x = y.unflatten(-1, (2, -1)).sum(-2)
            x = norm(x.transpose(1, 2)).transpose(1, 2)
        return self.head(x)


def deepspeech2(width: int = 1024, layers: int = 5, letters: int = 29) -> Any:
    """After Amodei et al., 2015 (arXiv:1512.02595), with LSTMs as public trainers run it. The loss
    that Presage traces is a cross entropy for each moment, not CTC."""
    return _DeepSpeech(width, layers, letters)


class _Gnmt(nn.Module):
    """Encoder and decoder of LSTMs with residual connections; the first decoder layer attends, as
    in Bahdanau's additive attention, and all later ones see what it found."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.both = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.second = nn.LSTM(2 * width, width, batch_first=True)
        self.encoder = nn.ModuleList(
            nn.LSTM(width, width, batch_first=True) for _ in range(layers - 2)
        )
        self.first = nn.LSTM(width, width, batch_first=True)
        self.decoder = nn.ModuleList(
            nn.LSTM(2 * width, width, batch_first=True) for _ in range(layers - 1)
        )
        self.query, self.key = nn.Linear(width, width, False), nn.Linear(width, width, False)
        self.score = nn.Parameter(torch.zeros(width))
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source: Any, target: Any) -> Any:
        x, _ = self.both(self.drop(self.embedding(source)))
        x, _ = self.second(self.drop(x))
        for layer in self.encoder:
            y, _ = layer(self.drop(x))
            x = x + y
        y, _ = self.first(self.drop(self.embedding(target)))
        energy = torch.tanh(self.query(y)[:, :, None] + self.key(x)[:, None])
        weights = torch.softmax(energy @ self.score, -1)
        context = torch.bmm(weights, x)
        for place, layer in enumerate(self.decoder):
            z, _ = layer(torch.cat([self.drop(y), context], -1))
            y = y + z if place else z
        return self.head(y)


def gnmt(vocabulary: int = 32320, width: int = 1024, layers: int = 4) -> Any:
    """Wu et al., 2016 (arXiv:1609.08144), with 4 layers as NVIDIA's trainer has it."""
    return _Gnmt(vocabulary, width, layers)
