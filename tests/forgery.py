"""What an attacker needs: model files and packed regressors taken apart, changed, and made to fit again."""

import hashlib
import io
import json
import zipfile

import numpy as np


def opened(data):
    """The schema and the members of a packed regressor."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    return json.loads(members.pop("schema.json")), members


def closed(schema, members, compression=zipfile.ZIP_STORED):
    """The packed regressor of a schema, or of the text of one."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr("schema.json", schema if isinstance(schema, str) else json.dumps(schema))
        for name, member in members.items():
            archive.writestr(name, member)
    return buffer.getvalue()


def npy(array, allow_pickle=False):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=allow_pickle)
    return buffer.getvalue()


def parts(data):
    """The header, our JSON in it, and the bytes of the tensors."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    return header, json.loads(header["__metadata__"]["localw2"].split(" ", 2)[2]), data[8 + size :]


def sealed(header, content, body):
    """A file that an attacker made, with the right checksum."""
    blank = "0" * 64
    word = content if isinstance(content, str) else json.dumps(content)
    header = {**header, "__metadata__": {"localw2": f"sha256 {blank} {word}"}}
    head = json.dumps(header, separators=(",", ":")).encode()
    data = len(head).to_bytes(8, "little") + head + body
    return data.replace(blank.encode(), hashlib.sha256(data).hexdigest().encode(), 1)


def with_regressor(data, packed, name="__regressor__.b"):
    """The file with the bytes of one regressor replaced and everything else made to fit."""
    header, content, body = parts(data)
    entries = {key: value for key, value in header.items() if key != "__metadata__"}
    new, joined = {}, b""
    for key, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        piece = packed if key == name else body[slice(*entry["data_offsets"])]
        shape = [len(packed)] if key == name else entry["shape"]
        new[key] = {**entry, "shape": shape, "data_offsets": [len(joined), len(joined) + len(piece)]}
        joined += piece
    return sealed(new, content, joined)
