"""Fourteen small models of unlike kinds, trained on made-up data in memory: rows of the matrix of CPU speeds."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

_CLASSES = 10


@dataclass(frozen=True, slots=True)
class CpuKind:
    """A model, and inputs for so many samples."""

    name: str
    model: Callable[[], nn.Module]
    inputs: Callable[[int], torch.Tensor]


class _Last(nn.Module):
    """A recurrent network's last state as classes."""

    def __init__(self, network: nn.Module, width: int) -> None:
        super().__init__()
        self.network, self.head = network, nn.Linear(width, _CLASSES)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        states, _ = self.network(rows)
        scores: torch.Tensor = self.head(states[:, -1])
        return scores


class _Mean(nn.Module):
    """Token states, averaged, as classes."""

    def __init__(self, width: int, network: nn.Module) -> None:
        super().__init__()
        self.embedding, self.network = nn.Embedding(200, width), network
        self.head = nn.Linear(width, _CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.network(self.embedding(tokens)).mean(dim=1))
        return scores


class _Residual(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.block(x))


def _perceptron(width: int, layers: int) -> nn.Module:
    hidden = [module for _ in range(layers) for module in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, _CLASSES))


def _convolutions(*channels: int) -> nn.Module:
    steps = pairwise(channels)
    layers = [m for a, b in steps for m in (nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))]
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(_CLASSES))


def _residual(width: int, blocks: int) -> nn.Module:
    def block() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    body = [_Residual(block()) for _ in range(blocks)]
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, _CLASSES)
    )


def _depthwise(width: int, blocks: int) -> nn.Module:
    body = [
        module
        for _ in range(blocks)
        for module in (nn.Conv2d(width, width, 3, padding=1, groups=width), nn.Conv2d(width, width, 1), nn.ReLU())
    ]
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1, stride=2), *body, nn.Flatten(), nn.LazyLinear(_CLASSES))


def _encoder(width: int, layers: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    return _Mean(width, nn.TransformerEncoder(layer, layers, enable_nested_tensor=False))


def _autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1),
        nn.Flatten(),
        nn.LazyLinear(_CLASSES),
    )


def _series() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(4, 32, 7, padding=3),
        nn.ReLU(),
        nn.Conv1d(32, 32, 7, padding=3),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(32, _CLASSES),
    )


def _recommender() -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(20_000, 32), nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, _CLASSES))


def _numbers(*shape: int) -> Callable[[int], torch.Tensor]:
    return lambda samples: torch.randn(samples, *shape)


def _tokens(length: int, many: int = 200) -> Callable[[int], torch.Tensor]:
    return lambda samples: torch.randint(many, (samples, length))


KINDS: tuple[CpuKind, ...] = (
    CpuKind("mlp-small", lambda: _perceptron(64, 2), _numbers(64)),
    CpuKind("mlp-wide", lambda: _perceptron(512, 3), _numbers(512)),
    CpuKind("mlp-deep", lambda: _perceptron(128, 16), _numbers(128)),
    CpuKind("cnn-digits", lambda: _convolutions(1, 16, 32), _numbers(1, 8, 8)),
    CpuKind("cnn-colour", lambda: _convolutions(3, 16, 32, 64), _numbers(3, 32, 32)),
    CpuKind("resnet", lambda: _residual(16, 3), _numbers(3, 16, 16)),
    CpuKind("mobilenet", lambda: _depthwise(32, 4), _numbers(3, 16, 16)),
    CpuKind("gru", lambda: _Last(nn.GRU(8, 64, batch_first=True), 64), _numbers(16, 8)),
    CpuKind("lstm", lambda: _Last(nn.LSTM(16, 96, 2, batch_first=True), 96), _numbers(12, 16)),
    CpuKind("transformer", lambda: _encoder(32, 2), _tokens(32)),
    CpuKind("transformer-wide", lambda: _encoder(96, 2), _tokens(16)),
    CpuKind("autoencoder", _autoencoder, _numbers(1, 16, 16)),
    CpuKind("series", _series, _numbers(4, 128)),
    CpuKind("recommender", _recommender, _tokens(20, 20_000)),
)


def built(kind: CpuKind) -> nn.Module:
    """The model with all its shapes known."""
    torch.manual_seed(0)
    model = kind.model()
    model(kind.inputs(2))
    return model


def update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    """One step of training."""
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()


def batch_of(kind: CpuKind, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and classes."""
    return kind.inputs(samples), torch.randint(_CLASSES, (samples,))
