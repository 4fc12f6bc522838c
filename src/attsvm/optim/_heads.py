"""Where attention heads lie in query, key and value matrices."""

import re
from typing import NamedTuple

from torch import Tensor

__all__ = ["Heads", "heads_of", "layer_of"]

_SUFFIX = r"(?:_?(?:proj|projection|lin|linear|attn|global))?"
_PREFIX = r"(?:(?:w|to|c|lin|linear|add|pos|pos_att)_?)?"
_ONE = re.compile(rf"{_PREFIX}(?:q|k|v|query|key|value|queries|keys|values){_SUFFIX}")
# Queries, keys and values one after another. In query_key_value, or a module in_proj, they may alternate head by head.
_PACKED = re.compile(rf"(?:(?:w|to|c|lin|linear)_?)?(qk|kv|qkv){_SUFFIX}|c_attn|in_proj_weight")


class Heads(NamedTuple):
    """The heads of one matrix along its outputs: queries, keys and values (`parts`), all heads of each."""

    weight: Tensor
    heads: int
    parts: int
    across: bool
    """whether the outputs are columns, as in GPT-2"""

    @property
    def outputs(self) -> int:
        """of each part"""
        return self.weight.shape[1 if self.across else 0] // self.parts

    def blocks(self) -> Tensor:
        """The entries, (parts, heads, entries of a head)."""
        rows = self.weight.detach().t() if self.across else self.weight.detach()
        return rows.reshape(self.parts, self.heads, -1)

    def spread(self, by_head: Tensor) -> Tensor:
        """One value for each head as one for each entry."""
        along = by_head.repeat_interleave(self.outputs // self.heads).repeat(self.parts)
        return (along if self.across else along[:, None]).expand(self.weight.shape)


def layer_of(name: str) -> tuple[str, str]:
    """The layer of a weight, and its own name in it."""
    layer, _, own = re.sub(r"(?:\.base_layer)?\.weight(?:_orig)?$", "", name).rpartition(".")
    return layer, own.removesuffix("_orig")


def heads_of(name: str, weight: Tensor, heads: int) -> Heads | None:
    """The heads of a query, key or value matrix, packed or not; None where name and shape do not tell."""
    own = layer_of(name)[1].lower()
    if weight.ndim != 2:
        return None
    rows, columns = weight.shape
    if _ONE.fullmatch(own.removesuffix("_weight")):
        found = Heads(weight, heads, 1, across=False)
    elif packed := _PACKED.fullmatch(own):
        parts = 2 if packed[1] in ("qk", "kv") else 3
        if parts * min(rows, columns) != max(rows, columns):
            return None
        found = Heads(weight, heads, parts, across=rows < columns)
    else:
        return None
    return None if found.outputs % heads else found
