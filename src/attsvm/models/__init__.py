"""Networks that the papers and the benchmarks train, one file each."""

from attsvm.models._attention import Places
from attsvm.models._gpt import GPT
from attsvm.models._text_transformer import TextTransformer
from attsvm.models._vit import ViT

__all__ = ["GPT", "Places", "TextTransformer", "ViT"]
