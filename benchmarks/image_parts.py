"""Cut a data file of images into parts of a given size, and put them together again where they are needed.

    python benchmarks/image_parts.py split cifar10.npz parts/ --mebibytes 45
    python benchmarks/image_parts.py join cifar10.npz parts/

Pixels are kept exactly: green, red − green and blue − green, each as differences to the left and upper pixel, packed by
xz. CIFAR-10 takes 1.5 kB per image, half of its raw size. Needs numpy, and attsvm for its file format.
"""

from __future__ import annotations

import argparse
import lzma
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from attsvm.transformer import Images, image_data, load_data, save_data

CHUNK = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["split", "join"])
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mebibytes", type=float, default=45.0)
    options = parser.parse_args()
    if options.command == "split":
        split(options.data, options.folder, round(options.mebibytes * 2**20))
    else:
        join(options.data, options.folder)


def split(source: Path, folder: Path, most: int) -> None:
    """Chunks of 2000 images, in folders part-0, part-1, … of at most `most` bytes."""
    data = load_data(source)
    assert isinstance(data.train, Images)
    assert isinstance(data.test, Images)
    part, used = 0, 0
    for name, images in (("train", data.train), ("test", data.test)):
        pixels, labels = images.pixels.numpy(), images.labels.numpy().astype(np.uint8)
        for start in range(0, len(labels), CHUNK):
            packed = pack(pixels[start : start + CHUNK], labels[start : start + CHUNK])
            if used and used + len(packed) > most:
                part, used = part + 1, 0
            used += len(packed)
            place = folder / f"part-{part}" / f"{name}-{start:06d}.xz"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(packed)
    print(f"{part + 1} parts in {folder}, {data.classes} classes")


def join(target: Path, folder: Path) -> None:
    """The data file of all parts that are in the folder."""
    splits = []
    with ProcessPoolExecutor(4) as pool:
        for name in ("train", "test"):
            files = sorted(folder.glob(f"part-*/{name}-*.xz"), key=lambda file: file.name)
            pixels, labels = zip(*pool.map(unpack, [file.read_bytes() for file in files]))
            splits.append((np.concatenate(pixels), np.concatenate(labels).astype(np.int64)))
            print(f"{name}: {len(splits[-1][1])} images")
    save_data(image_data(splits[0], splits[1], 1 + max(int(labels.max()) for _, labels in splits), 48), target)


def pack(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    """Images (n, 3, height, width) uint8 and their labels as bytes."""
    red, green, blue = pixels[:, 0], pixels[:, 1], pixels[:, 2]
    content = [np.array(pixels.shape, "<u4").tobytes() + labels.tobytes()]
    for plane in (green, red - green, blue - green):  # differences wrap around at 256
        across = np.diff(plane, axis=2, prepend=np.uint8(0))
        packed = lzma.compress(np.diff(across, axis=1, prepend=np.uint8(0)).tobytes())
        content.append(len(packed).to_bytes(4, "little") + packed)
    return b"".join(content)


def unpack(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """What `pack` packed."""
    n, _, height, width = np.frombuffer(content[:16], "<u4").tolist()
    labels, at, planes = np.frombuffer(content[16 : 16 + n], np.uint8), 16 + n, []
    for _ in range(3):
        size = int.from_bytes(content[at : at + 4], "little")
        across = np.frombuffer(lzma.decompress(content[at + 4 : at + 4 + size]), np.uint8).reshape(n, height, width)
        planes.append(across.cumsum(1, np.uint8).cumsum(2, np.uint8))
        at += 4 + size
    green = planes[0]
    return np.stack([planes[1] + green, green, planes[2] + green], 1), labels


if __name__ == "__main__":
    main()
