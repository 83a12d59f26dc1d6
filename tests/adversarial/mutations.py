"""Ways to damage a file: its bytes, its place in the file system, or what it says.

A mutation takes a seeded generator and a file, changes the file and describes the change. Nothing
here depends on the clock or on other files, so a seed always gives the same damage.
"""

from __future__ import annotations

import csv
import io
import json
import pickle
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np

Mutation = Callable[[Random, Path], str]

# Bytes ---------------------------------------------------------------------------------------


def flip_bits(random: Random, path: Path) -> str:
    data = bytearray(path.read_bytes())
    places = [random.randrange(len(data)) for _ in range(random.choice([1, 1, 1, 8, 64]))]
    for place in places:
        data[place] ^= 1 << random.randrange(8)
    path.write_bytes(data)
    return f"{len(places)} bits flipped, the first in byte {places[0]}"


def truncate(random: Random, path: Path) -> str:
    data = path.read_bytes()
    length = random.choice([0, 1, len(data) // 2, len(data) - 1, random.randrange(len(data))])
    path.write_bytes(data[:length])
    return f"truncated to {length} of {len(data)} bytes"


def overwrite_range(random: Random, path: Path) -> str:
    """Zero, randomise, duplicate or remove a range, or swap it with another."""
    data = path.read_bytes()
    length = random.choice([1, 16, 512, max(1, len(data) // 3)])
    first, second = (random.randrange(max(1, len(data) - length)) for _ in range(2))
    chunk, other = data[first : first + length], data[second : second + length]
    how = random.choice(["zeroed", "random", "duplicated", "removed", "swapped"])
    new = {
        "zeroed": bytes(len(chunk)),
        "random": random.randbytes(len(chunk)),
        "duplicated": chunk * 2,
        "removed": b"",
        "swapped": other,
    }[how]
    changed = data[:first] + new + data[first + length :]
    if how == "swapped":
        changed = changed[:second] + chunk + changed[second + length :]
    path.write_bytes(changed)
    return f"{length} bytes from {first} {how}"


def replace_file(random: Random, path: Path) -> str:
    """Put something else in the file's place: a folder, a link to itself, random bytes, nothing."""
    how = random.choice(["folder", "link loop", "dangling link", "random bytes", "missing"])
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "link loop":
        path.symlink_to(path.name)
    elif how == "dangling link":
        path.symlink_to("nowhere")
    elif how == "random bytes":
        path.write_bytes(random.randbytes(random.choice([1, 100, 10_000])))
    return how


BYTES: tuple[Mutation, ...] = (flip_bits, flip_bits, overwrite_range, truncate, replace_file)

# Text that holds values ----------------------------------------------------------------------

_DEEP = 100_000
ODD_JSON = (
    *("null", "NaN", "-Infinity", "1e308", "1e999", "-1", "0", "true", '""', "[]", "{}", "0.5"),
    *("9" * 25, "9" * 5000, '"' + "x" * 100_000 + '"', '"\\ud800"', '"\\u0000"', '"../../x"'),
    *("[" * _DEEP + "]" * _DEEP, '{"a":' * _DEEP + "1" + "}" * _DEEP, "[[1]]", '{"type": 1}'),
)
ODD_YAML = (
    *("null", ".nan", "-.inf", "1e308", "-1", "[]", "{}", "yes", "''", "2020-13-45", "0x1f"),
    *("9" * 25, "9" * 5000, "x" * 100_000, "&a [*a]", "*unknown", "!!python/name:os.system", "@"),
    *("[" * 5000 + "]" * 5000, "!!binary x", "? [a]", "!!timestamp 1", "!!int x", "12:30:45"),
)


def change_json(random: Random, path: Path) -> str:
    """Replace, remove or repeat one value of a JSON document."""
    document = json.loads(path.read_text())
    text, what = _change_value(random, document, ODD_JSON)
    path.write_text(text)
    return what


def change_yaml(random: Random, path: Path) -> str:
    """Replace, remove or repeat one value of a YAML document, or add an alias bomb."""
    import yaml

    document = yaml.safe_load(path.read_text())
    if random.random() < 0.1:
        levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
        path.write_text("\n".join(["a0: &a0 [x]", *levels, path.read_text()]))
        return "alias bomb"
    text, what = _change_value(random, document, ODD_YAML)
    path.write_text(text)
    return what


def _change_value(random: Random, document: Any, odd: tuple[str, ...]) -> tuple[str, str]:
    """The document as JSON, which is YAML too, and what was changed in it."""
    parent, key = random.choice(list(_places({"": document}, "")))
    where = f"{key!r} of {str(parent)[:60]}"
    value = random.choice(odd)
    if isinstance(parent, dict) and key and random.random() < 0.2:
        if random.random() < 0.5:
            del parent[key]
            return json.dumps(document), f"{where} removed"
        parent["@again@"] = "@odd@"
        text = json.dumps(document, indent=1).replace('"@again@"', json.dumps(key))
    elif key == "":
        text = '"@odd@"'
    else:
        parent[key] = "@odd@"
        text = json.dumps(document, indent=1)
    return text.replace('"@odd@"', value), f"{where} is {value[:40]}"


def _places(node: Any, name: Any) -> list[tuple[Any, Any]]:
    items = node.items() if isinstance(node, dict) else enumerate(node)
    found = []
    for key, value in items:
        found.append((node, key))
        if isinstance(value, dict | list):
            found += _places(value, key)
    return found


ODD_CELLS = (
    *("", "NaN", "nan", "inf", "1e308", "-1", "9" * 400, "x" * 200_000, "\0", "a\nb", '"', "'"),
    *("=1+1", "../../x", "/etc/passwd", "\u202e", "null", "0.5", " ", "tumour\t", "#N/A", "²", "٣"),
)


def change_table(random: Random, path: Path) -> str:
    """Change a cell, a row, a column or the encoding of a CSV or TSV table."""
    mark = "\t" if path.suffix == ".tsv" else ","
    rows = list(csv.reader(io.StringIO(path.read_text()), delimiter=mark))
    row, column = random.randrange(len(rows)), random.randrange(len(rows[0]))
    how = random.choice(["cell", "cell", "cell", "column", "row", "header", "short", "encoding"])
    value = random.choice(ODD_CELLS)
    if how == "cell":
        rows[row][column] = value
    elif how == "column":
        rows = [[*cells, cells[column]] for cells in rows]
    elif how == "row":
        rows.append(rows[row])
    elif how == "header":
        rows = rows[1:]
    elif how == "short":
        rows[row] = rows[row][:column]
    text = io.StringIO()
    csv.writer(text, delimiter=mark, lineterminator="\n").writerows(rows)
    if how == "encoding":
        encoding = random.choice(["utf-16", "utf-32", "utf-8-sig", "utf-7"])
        path.write_text(text.getvalue(), encoding=encoding)
        return f"written as {encoding}"
    path.write_text(text.getvalue(), errors="surrogatepass")
    return f"{how} {row}, {column}: {value[:40]!r}"


def change_workbook(random: Random, path: Path) -> str:
    """Change a cell of an Excel file, or what its archive holds."""
    import openpyxl

    if random.random() < 0.4:
        return _change_archive(random, path)
    book = openpyxl.load_workbook(path)
    row, column = random.randint(1, book.active.max_row), random.randint(1, book.active.max_column)
    far = random.random() < 0.1
    cell = book.active.cell(1_048_576 if far else row, 16_384 if far else column)
    value = random.choice([None, True, 1e308, -1, "=1/0", "x" * 30_000, 0.5, "#N/A", 10**18])
    cell.value = value
    book.save(path)
    return f"cell {cell.coordinate} is {str(value)[:40]}"


def _change_archive(random: Random, path: Path) -> str:
    """Rewrite a zip archive with one member missing, damaged, repeated or blown up."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = random.choice(list(members))
    how = random.choice(["missing", "empty", "damaged", "bomb"])
    if how == "missing":
        del members[name]
    else:
        bomb = members[name] + b" " * 300_000_000 if how == "bomb" else b""
        members[name] = random.randbytes(99) if how == "damaged" else bomb
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for key, content in members.items():
            archive.writestr(key, content)
    return f"member {name} {how}"


# Arrays --------------------------------------------------------------------------------------


def _odd_array(random: Random, like: Any) -> tuple[str, Any]:
    like = np.atleast_1d(np.asarray(like))
    number = like.astype(np.float64) if like.dtype.kind in "iufb" else np.ones(like.shape)
    odd = number.copy()
    odd.flat[random.randrange(odd.size)] = random.choice([np.nan, np.inf, 1e308, -1, -1e9, 0.5])
    choices = {
        "one odd value": odd,
        "no rows": number[:0],
        "one row less": number[:-1],
        "flat": number.ravel(),
        "one more axis": number[None],
        "transposed": number.T,
        "a scalar": number.flat[0],
        "complex": number.astype(np.complex64),
        "bool": number > 0,
        "int8": number.astype(np.int8),
        "uint64": np.full(number.shape, 2**63 + 1, np.uint64),
        "int64 limits": np.full(number.shape, -(2**63), np.int64),
        "float16": number.astype(np.float16),
        "bytes": np.full(number.shape, b"x"),
        "big endian": number.astype(">f8"),
        "constant": np.zeros(number.shape, like.dtype),
    }
    what = random.choice(list(choices))
    return what, choices[what]


def change_hdf5(random: Random, path: Path) -> str:
    """Change one dataset or attribute of an HDF5 file."""
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visititems(lambda name, found: names.append(name))
        name = random.choice(names)
        holder = random.choice([file, file[name]])
        attributes = sorted(holder.attrs)
        if attributes and random.random() < 0.35:
            return _change_attribute(random, holder, random.choice(attributes))
        if random.random() < 0.6 and isinstance(file[name], h5py.Dataset):
            what, value = _odd_array(random, file[name][()])
            kept = dict(file[name].attrs)
            del file[name]
            file[name] = value
            file[name].attrs.update(kept)
            return f"{name}: {what}"
        return f"{name}: {_replace_dataset(random, file, name)}"


def _change_attribute(random: Random, holder: Any, key: str) -> str:
    odd = [np.nan, -1, 0, 1e308, "x", "x" * 60_000, b"\xff", np.zeros(9), h5py.Empty("f4"), 2**63]
    value = random.choice(odd)
    if random.random() < 0.2:
        del holder.attrs[key]
        return f"attribute {key} removed"
    holder.attrs[key] = value
    return f"attribute {key} is {str(value)[:40]}"


def _replace_dataset(random: Random, file: h5py.File, name: str) -> str:
    how = random.choice(["missing", "group", "dangling", "loop", "external", "virtual", "vlen"])
    how = random.choice([how, "huge", "compound"])
    del file[name]
    if how == "group":
        file.create_group(name)
    elif how == "dangling":
        file[name] = h5py.SoftLink("/nowhere")
    elif how == "loop":
        file[name] = h5py.SoftLink(f"/{name}")
    elif how == "external":
        file[name] = h5py.ExternalLink("/etc/passwd", "/")
    elif how == "virtual":
        layout = h5py.VirtualLayout((4, 6), "f4")
        layout[:] = h5py.VirtualSource("other.h5", "x", (4, 6))
        file.create_virtual_dataset(name, layout)
    elif how == "vlen":
        file.create_dataset(name, (4,), h5py.vlen_dtype(np.float32))
    elif how == "compound":
        file.create_dataset(name, (4, 6), [("a", "f4"), ("b", "S3")])
    elif how == "huge":  # a declared size that no machine has; a few bytes in the file
        rows = random.choice([10**7, 10**12])
        chunks = random.choice([(1, 1), (64, 1024)])
        file.create_dataset(name, (rows, 1024), "f4", chunks=chunks, compression="gzip")
    return how


def change_numpy(random: Random, path: Path) -> str:
    """Change the array of a .npy file, or one of a .npz file."""
    if path.suffix == ".npy":
        what, content = _odd_npy(random, np.load(path))
        path.write_bytes(content)
        return what
    if random.random() < 0.4:
        return _change_archive(random, path)
    with np.load(path) as found:
        arrays = {name: found[name] for name in found.files}
    key = random.choice(list(arrays))
    what, content = _odd_npy(random, arrays[key])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in arrays.items():
            archive.writestr(f"{name}.npy", content if name == key else _npy(value))
    return f"{key}: {what}"


def _npy(value: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, value, allow_pickle=True)
    return file.getvalue()


def _odd_npy(random: Random, like: Any) -> tuple[str, bytes]:
    how = random.choice(["array", "array", "huge", "pickle", "negative", "structured"])
    if how == "pickle":
        return how, _npy(np.array([_Code()], object))
    if how == "structured":
        return how, _npy(np.zeros(3, [("a", "f4"), ("b", "U9")]))
    if how in ("huge", "negative"):
        shape = (10**11, 1024) if how == "huge" else (-1, 6)
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117)
        return how, b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + f"{header}\n".encode() + b"1234"
    what, value = _odd_array(random, like)
    return what, _npy(value)


CANARY = "canary-of-the-trial"


class _Code:
    """What a pickle would run: it makes a folder that the judge looks for."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.mkdir, (Path(CANARY),))


def change_torch(random: Random, path: Path) -> str:
    """Change one tensor of a file of torch.save, or put code or a huge view in its place."""
    import torch

    saved = torch.load(path, weights_only=True)
    named = dict(saved) if isinstance(saved, dict) else {"": saved}
    key = random.choice(list(named))
    how = random.choice(["array", "array", "code", "huge", "sparse", "nothing", "text", "archive"])
    if how == "archive":
        return _change_archive(random, path)
    odd: Any = {"nothing": None, "text": "x", "code": _Code(), "array": None}.get(how)
    if how == "array":
        how, value = _odd_array(random, named[key].numpy())
        odd = torch.from_numpy(np.array(value)) if value.dtype.kind in "fiub" else "x"
    elif how == "huge":
        odd = torch.zeros(1).expand(10**6, 10**6)
    elif how == "sparse":
        odd = torch.eye(4).to_sparse()
    named[key] = odd
    value = named if isinstance(saved, dict) else odd
    path.write_bytes(pickle.dumps(value)) if how == "code" else torch.save(value, path)
    return f"{key}: {how}"


def change_safetensors(random: Random, path: Path) -> str:
    """Change the header of a safetensors file, which is JSON behind its length."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    text, what = _change_value(random, json.loads(data[8 : 8 + size]), ODD_JSON)
    length = random.choice([len(text.encode())] * 4 + [2**63, 0])
    path.write_bytes(struct.pack("<Q", length) + text.encode() + data[8 + size :])
    return what


# Pictures ------------------------------------------------------------------------------------


def change_picture(random: Random, path: Path) -> str:
    """Write a picture of an unusual kind under the name, or declare a size it does not have."""
    from PIL import Image

    kinds = ["1", "L", "P", "RGBA", "CMYK", "I;16", "F", "tiny", "narrow", "bomb", "animated"]
    how = random.choice(kinds)
    frame = Image.effect_noise((96, 80), 60)
    if how == "bomb":
        path.write_bytes(_png_bomb(60_000))
        return how
    if how in ("tiny", "narrow"):
        frame = frame.resize((1, 1) if how == "tiny" else (1, 5000))
    elif how == "animated":
        frame.save(path, format="GIF", save_all=True, append_images=[frame.rotate(90)] * 3)
        return how
    else:
        frame = frame.convert("I").convert(how) if how == "I;16" else frame.convert(how)
    kind = "TIFF" if how in ("CMYK", "I;16", "F") else "PNG"
    frame.save(path, format=kind)
    return f"{how} as {kind}"


def _png_bomb(side: int) -> bytes:
    """A PNG of a few kilobytes that says it has side x side pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1_000_000))
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", pixels), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def mutate(random: Random, path: Path, own: tuple[Mutation, ...]) -> str:
    """Damage a file in one way: half the time by its bytes, otherwise by what it says."""
    if path.is_dir():
        shutil.rmtree(path)
        return "folder removed"
    mutation = random.choice(own if own and random.random() < 0.5 else BYTES)
    return f"{mutation.__name__}: {mutation(random, path)}"
