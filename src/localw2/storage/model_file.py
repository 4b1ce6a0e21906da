"""One file for a fitted estimator: safetensors with JSON inside, no pickle, and nothing in it ever runs.

``write`` and ``read`` move a ``Stored`` (plain settings, tensors, scikit-learn regressors) to and from disk.
A file is not trusted: a checksum covers every byte and detects damage, and everything that an attacker could
rewrite together with the checksum is checked again before it is used. Regressors are packed by skops
(``regressors``); what they name is audited before anything is built (``audit``), and their content is checked
before scikit-learn uses it (``checks``).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
import tempfile
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from localw2.storage.atomic import replace_file
from localw2.storage.audit import count_places
from localw2.storage.regressors import pack_regressor, unpack_regressor

FORMAT_VERSION = 2  # of what is written; 1, of development versions, compared trees' numbers in other units
OLDEST_VERSION = 1

_KEY = "localw2"  # the one key of the safetensors metadata: 'sha256 <64 hex digits> <JSON>'
_REGRESSOR = "__regressor__."  # the prefix of the tensors that hold packed regressors
_SEAL = re.compile(rb'"localw2":"sha256 ([0-9a-f]{64}) ')
_BLANK = b"0" * 64
_MAX_HEADER = 10_000_000  # bytes; parsed JSON can take about thirty times its length in memory
_MAX_DEPTH = 50
_PLAIN = "None, bool, int, float, str, list or dict with str keys"


@dataclass(frozen=True)
class Stored:
    """The content of a model file: the kind of model, plain settings, tensors and fitted regressors.

    ``settings`` takes JSON values only. Tuples come back as lists and numpy floats as floats; NaN and the
    infinities are kept.

    >>> Stored("line", {"delta": 0.1}, {"slope": torch.tensor([2.0])}).kind
    'line'
    """

    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    regressors: dict[str, Any] = field(default_factory=dict)


def write(path: str | os.PathLike[str], stored: Stored) -> None:
    """Write one file, all or nothing: an interrupted write leaves the old file as it was.

    The same content gives the same bytes. Tensors are copied to the CPU and detached.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(folder + "/m.localw2", Stored("line", {"delta": 0.1}, {"slope": torch.tensor([2.0])}))
    ...     read(folder + "/m.localw2")
    Stored(kind='line', settings={'delta': 0.1}, tensors={'slope': tensor([2.])}, regressors={})
    """
    replace_file(_as_path(path), _serialise(stored))


def read(path: str | os.PathLike[str]) -> Stored:
    """Read a file that ``write`` wrote; ValueError, with the reason, for anything else.

    Nothing in the file is run. The memory needed is that of the file and of its header with names and
    settings, which has at most 10 MB of JSON.
    """
    from safetensors.torch import load

    source = _as_path(path)
    data, content = _read_sealed(source)
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            stored = _unpack(content, load(data))
    except Exception as error:  # whatever a hostile file provokes becomes a ValueError with the reason
        raise ValueError(
            f"{source} cannot be used: {error or type(error).__name__} "
            "Use another copy of the file, or fit and save the model again."
        ) from error
    if said:  # each of the regressors inside would say the same
        warnings.warn(_explain_skew(source, [one.message for one in said]), stacklevel=3)
    return stored


def _explain_skew(path: Path, said: list[Any]) -> str:
    """What other libraries said of a file, in one sentence."""
    was = sorted({str(v) for one in said if (v := getattr(one, "original_sklearn_version", None))})
    now = next((str(v) for one in said if (v := getattr(one, "current_sklearn_version", None))), "")
    found = f"scikit-learn said of it: {str(said[0]).split('. ')[0]}"
    if was:
        found = f"it was written with scikit-learn {', '.join(was)[:80]}, and this is {now}"
    return (
        f"{path} may predict differently here: {found}. Compare some predictions, or fit and save it again."
    )


def check_writable(path: Any, name: str) -> None:
    """Raise ValueError unless a file can be written there; a long fit should know before it starts."""
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"{name}={path!r} is not a path; give a file name, or None.")
    target = Path(os.path.realpath(_as_path(path)))
    if not target.parent.is_dir():
        raise ValueError(f"{name}={str(path)!r}: its folder does not exist; create it before the fit.")
    try:
        # Not Path.is_dir, which since Python 3.14 is silent about a name that is too long.
        with suppress(FileNotFoundError):
            if stat.S_ISDIR(target.stat().st_mode):
                raise ValueError(f"{name}={str(path)!r} is a folder; give the name of a file in it.")
        with tempfile.TemporaryFile(dir=target.parent) as file:
            file.write(b"localw2")
    except OSError as error:
        raise ValueError(
            f"{name}={str(path)!r} cannot be written ({error.strerror}); "
            "choose a folder that you may write to and that has space."
        ) from error


def _as_path(path: Any) -> Path:
    """The path, if it is one."""
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"path={path!r} is not a path; give a str or a pathlib.Path.")
    if "\0" in os.fsdecode(path):
        raise ValueError(f"path={path!r} contains a null character, which no file name can.")
    return Path(os.fsdecode(path))


# --- writing --------------------------------------------------------------------------------------------


def _serialise(stored: Stored) -> bytes:
    """The bytes of the file, including its checksum."""
    from safetensors.torch import save

    if not isinstance(stored.kind, str) or not stored.kind:
        raise ValueError(f"kind={stored.kind!r} must be a non-empty str, such as 'LocalW2Regressor'.")
    if not isinstance(stored.settings, dict):
        raise ValueError(f"settings is {type(stored.settings).__name__}; it must be a dict.")
    tensors = {name: _copy_tensor(name, tensor) for name, tensor in stored.tensors.items()}
    for name, regressor in stored.regressors.items():
        _check_name(name)
        packed = bytearray(pack_regressor(regressor))
        tensors[_REGRESSOR + name] = torch.frombuffer(packed, dtype=torch.uint8)
    content = {
        "format": "localw2",
        "format_version": FORMAT_VERSION,
        "kind": stored.kind,
        "settings": as_json(stored.settings, "settings"),
        "regressors": sorted(stored.regressors),
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    try:
        data: bytes = save(tensors, {_KEY: f"sha256 {_BLANK.decode()} {text}"})
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"safetensors cannot store these tensors: {error}") from error
    if int.from_bytes(data[:8], "little") > _MAX_HEADER:
        raise ValueError(
            f"settings and names take more than {_MAX_HEADER // 10**6} MB, which read() would refuse; "
            "store large values as tensors."
        )
    seal = _find_seal(data)
    assert seal is not None
    return data[: seal.start] + _compute_digest(data, seal) + data[seal.stop :]


def _find_seal(data: bytes) -> slice | None:
    """Where the header states the checksum, if it does so exactly once."""
    size = 8 + int.from_bytes(data[:8], "little")
    found = [slice(*seal.span(1)) for seal in _SEAL.finditer(data, 0, size)]
    return found[0] if len(found) == 1 else None


def _compute_digest(data: bytes, seal: slice) -> bytes:
    """The checksum of all bytes, with zeros in its own place, so that it covers the whole file."""
    digest = hashlib.sha256(data[: seal.start])
    digest.update(_BLANK)
    digest.update(memoryview(data)[seal.stop :])
    return digest.hexdigest().encode()


def _copy_tensor(name: str, tensor: Any) -> torch.Tensor:
    """The tensor as a dense copy on the CPU."""
    _check_name(name)
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"tensors[{name!r}] is {type(tensor).__name__}; use torch.as_tensor.")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise ValueError(f"tensors[{name!r}] is sparse, quantised or without data; store a dense tensor.")
    # safetensors refuses shared memory and strides.
    copy: torch.Tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    return copy.clone(memory_format=torch.contiguous_format)


def _check_name(name: Any) -> None:
    """Refuse a name that is reserved, or that UTF-8 cannot encode."""
    if not isinstance(name, str) or name.startswith("__"):
        raise ValueError(f"name {name!r} must be a str that does not begin with two underscores.")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"name {name!r} contains half a character (a lone surrogate); rename it.") from None


def as_json(value: Any, where: str, depth: int = 0) -> Any:
    """The value as JSON values only; ValueError says where it is not."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"{where[:80]}... is nested more than {_MAX_DEPTH} levels deep, or contains itself.")
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, list | tuple):
        return [as_json(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{where} has the key {key!r}; JSON keys are str: use {str(key)!r}.")
        return {str(key): as_json(item, f"{where}[{key!r}]", depth + 1) for key, item in value.items()}
    raise ValueError(f"{where} is {type(value).__name__}, which JSON cannot represent; use {_PLAIN}.")


# --- reading --------------------------------------------------------------------------------------------


def _read_sealed(path: Path) -> tuple[bytes, dict[str, Any]]:
    """The bytes of a complete, undamaged file of ours, and our JSON in its header."""
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ValueError(f"{path} is not a regular file; give the path of a file that save() wrote.")
            data, content = _read_checked(path, file, status.st_size)
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder; give the path of a model file.") from None
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist; check the path, or save a model there.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}. Check its permissions.") from error
    seal = _find_seal(data)
    if seal is None or _compute_digest(data, seal) != data[seal]:
        raise ValueError(
            f"{path} is damaged: its checksum does not match its content. "
            "Use another copy of the file, or fit and save the model again."
        )
    return data, content


def _open_without_waiting(path: str, flags: int) -> int:
    """Open without waiting for a writer, as a named pipe would do for ever."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _read_checked(path: Path, file: io.BufferedReader, size: int) -> tuple[bytes, dict[str, Any]]:
    """The same before the checksum is verified; sizes are compared before anything large is read."""
    start = file.read(8)
    length = int.from_bytes(start, "little")
    foreign = f"{path} is not a localw2 model file"
    if len(start) < 8 or not 2 <= length <= min(size - 8, _MAX_HEADER):
        raise ValueError(
            f"{foreign} (or only the beginning of one); give the path of a file that save() wrote."
        )
    header = file.read(length)
    try:
        fields = json.loads(header, object_pairs_hook=_reject_repeated_keys)
        sizes = [entry["data_offsets"][1] for name, entry in fields.items() if name != "__metadata__"]
        content = _parse_content(fields)
        version = content["format_version"]
    except Exception as error:  # the bytes may be anything
        raise ValueError(f"{foreign}, or is damaged; give the path of a file that save() wrote.") from error
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {version}; this localw2 reads up to {FORMAT_VERSION}. "
            "Upgrade it: pip install --upgrade localw2."
        )
    known = type(version) is int and OLDEST_VERSION <= version <= FORMAT_VERSION
    if not known or content.get("format") != "localw2":
        raise ValueError(f"{foreign}: its format is {content.get('format')!r}, version {version!r}.")
    if not all(type(end) is int for end in sizes) or max(sizes, default=0) != size - 8 - length:
        raise ValueError(
            f"{path} is truncated or damaged: {size} bytes do not match the sizes that it states. "
            "Use another copy of the file, or fit and save the model again."
        )
    return start + header + file.read(size - 8 - length), content


def _reject_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without repeated keys, among which readers would choose differently."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice.")
    return found


def _parse_content(header: dict[str, Any]) -> dict[str, Any]:
    """Our JSON inside the safetensors header."""
    word, _, text = header["__metadata__"][_KEY].split(" ", 2)
    content = json.loads(text, object_pairs_hook=_reject_repeated_keys)
    if word != "sha256" or not isinstance(content, dict):
        raise ValueError("its metadata is not from localw2.")
    return content


def _unpack(content: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Stored:
    """The content of the file, if its JSON and its tensors match."""
    kind, settings, names = content["kind"], content["settings"], content["regressors"]
    if not isinstance(kind, str) or not kind or not isinstance(settings, dict):
        raise ValueError(f"its kind is {kind!r} and its settings are {type(settings).__name__}.")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("its list of regressors is not a list of names.")
    as_json(settings, "settings")
    packed = {
        name[len(_REGRESSOR) :]: tensors.pop(name) for name in list(tensors) if name.startswith(_REGRESSOR)
    }
    if sorted(packed) != names:
        raise ValueError(f"it lists the regressors {names} but contains {sorted(packed)}.")
    size = sum(tensor.nbytes for tensor in tensors.values()) + 1_000_000
    for name, tensor in tensors.items():
        _check_name(name)
        if count_places(tuple(tensor.shape)) > size:  # it has no elements, but a walk through it has no end
            raise ValueError(f"tensor {name!r} has shape {tuple(tensor.shape)} but no content.")
        if tensor.dtype == torch.bool and bool((tensor.view(torch.uint8) > 1).any()):
            raise ValueError(f"tensor {name!r} has Boolean values other than 0 and 1.")
    regressors = {}
    for name, tensor in packed.items():
        if tensor.dtype != torch.uint8 or tensor.ndim != 1:
            raise ValueError(
                f"regressor {name!r} is {tensor.dtype} of shape {tuple(tensor.shape)}, not bytes."
            )
        regressors[name] = unpack_regressor(tensor.numpy().tobytes())
    return Stored(kind, settings, tensors, regressors)
