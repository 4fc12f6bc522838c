"""Networks that the papers train, one file each."""

from attsvm.models._attention import Places
from attsvm.models._text_transformer import TextTransformer
from attsvm.models._vit import ViT

__all__ = ["Places", "TextTransformer", "ViT"]
