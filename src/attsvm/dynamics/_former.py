"""Trajectories of the first format, whose settings were texts."""

import json
import re
from typing import Any

from attsvm.errors import AttsvmError
from attsvm.files import PathLike

FORMAT = "attsvm-trajectory/1"


def modernized(path: PathLike, arrays: dict[str, Any], strings: dict[str, str], format: str) -> tuple[Any, Any]:
    """What a file of the first format would hold in the present one; other files as they are."""
    if strings.get("format") != FORMAT:
        return arrays, strings
    try:
        settings, state = json.loads(strings["settings"]), json.loads(strings["state"])
        geometry = _geometry(strings["geometry"], strings["beta"])
        parameterization = strings["parameterization"]
        names = {"W": ("W",), "KQ": ("K", "Q"), "joint": ("W", "v")}[parameterization]
        of_steps = {"kind": "Lp", "p": 2.0} if parameterization == "KQ" else geometry
        init = _object(settings["init"])
        facts: dict[str, Any] = {
            "format": format,
            "head": strings["head"],
            "geometry": geometry,
            "rule": {"kind": "mirror", "geometry": of_steps, "normalize": settings["normalize"]},
            "loss": {"kind": settings["loss"]},
            "parameterization": parameterization,
            "state": {"step": state["step"], "compiled": state["compiled"]},
            "settings": {name: settings[name] for name in ("steps", "m", "ridge", "stop")}
            | {"lr": dict.fromkeys(names, _object(settings["lr"])), "init": init},
        }
        renamed = {re.sub(r"^theta\.(\w+)$", r"state.\1.theta", name): array for name, array in arrays.items()}
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise AttsvmError(f"{path} must hold a whole trajectory ({FORMAT}), but it does not.") from error
    return renamed, {name: fact if isinstance(fact, str) else json.dumps(fact) for name, fact in facts.items()}


def _geometry(name: str, beta: str) -> dict[str, Any]:
    return {"kind": "Nuclear", "beta": float(beta)} if beta else {"kind": "Lp", "p": float(name.removeprefix("l"))}


def _object(text: str) -> dict[str, Any]:
    """'zero', 0.1, Growing(base=0.1, factor=4.0), Gaussian(scale=0.1, seed=0, trials=None) as kind and numbers."""
    text = text.strip("'\"")
    if re.fullmatch(r"[-+.\de]+", text):
        return {"kind": "constant", "eta": float(text)}
    kind, _, arguments = text.partition("(")
    numbers = dict(re.findall(r"(\w+)=([-+.\de]+)\b", arguments))
    whole = {"seed": int}
    return {"kind": kind.split()[0].lower()} | {name: whole.get(name, float)(x) for name, x in numbers.items()}
