"""Which variables hold a tensor: most tensors are variables, a large dense kernel is its blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import tensorflow as tf

from toolkit.autodiff.blocks import Blocks


@dataclass(frozen=True)
class Storage:
    """The tensors that are kept in blocks, by name; all others are kept as they are."""

    blocks: Mapping[str, Blocks]

    def beside(self, prefix: str) -> Storage:
        """With a copy of every tensor under a name that begins with `prefix`."""
        copies = {prefix + n: replace(b, name=prefix + n) for n, b in self.blocks.items()}
        return Storage({**self.blocks, **copies})

    def variables(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names of the variables that hold these tensors."""
        return tuple(
            kept for n in names for kept in (self.blocks[n].names if n in self.blocks else (n,))
        )

    def tensor(self, variable: str) -> str:
        """The name of the tensor that a variable holds, or holds a block of."""
        return next((n for n, b in self.blocks.items() if variable in b.names), variable)

    def cut(self, tensors: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Tensors → what their variables hold."""
        found: dict[str, tf.Tensor] = {}
        for name, value in tensors.items():
            found |= self.blocks[name].cut(value) if name in self.blocks else {name: value}
        return found

    def join(self, held: Mapping[str, tf.Tensor], names: Iterable[str]) -> dict[str, tf.Tensor]:
        """What variables hold → the tensors of these names."""
        return {n: self.blocks[n].join(held) if n in self.blocks else held[n] for n in names}
