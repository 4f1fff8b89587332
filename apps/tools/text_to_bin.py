#!/usr/bin/env python3
"""Turns text into a Megatron-LM data set, PREFIX.bin and PREFIX.idx, with a Hugging Face tokenizer.

Every input is cut into documents; each becomes one sequence, followed by the tokenizer's end-of-text
token. Ids are stored as 16 bits where the vocabulary fits, else as 32.

needs: pip install tokenizers numpy

usage: text_to_bin.py --tokenizer FILE_OR_DIR --output PREFIX [--split file|line|blank]
                      [--json-key KEY] [--eod TOKEN | --no-eod] [--force] INPUT...
"""
import argparse
import itertools
import json
import os
import pathlib
import struct
import sys

try:
    import numpy as np
    from tokenizers import Tokenizer
except ImportError as error:
    sys.exit(f"text_to_bin.py: {error}; pip install tokenizers numpy")

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
DTYPE_CODES = {np.dtype(np.uint16): 8, np.dtype(np.int32): 4}  # Megatron's numbers
END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<|im_end|>")
BATCH = 256  # documents that are tokenized at a time


class InputError(Exception):
    """An input file or option is wrong."""


def read_documents(path, split, json_key):
    """Yields the documents of one file."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            if json_key is not None:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield json_document(path, number, line, json_key)
            elif split == "file":
                yield file.read()
            elif split == "line":
                yield from (line for line in file if line.strip())
            else:
                yield from blank_line_documents(file)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8: {error.reason}") from error


def json_document(path, number, line, key):
    try:
        text = json.loads(line)[key]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: line {number}: expected an object with \"{key}\": {error}") from error
    if not isinstance(text, str):
        raise InputError(f"{path}: line {number}: \"{key}\" is not text")
    return text


def blank_line_documents(file):
    lines = []
    for line in file:
        if line.strip():
            lines.append(line)
        elif lines:
            yield "".join(lines)
            lines = []
    if lines:
        yield "".join(lines)


def load_tokenizer(path):
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"{file}: no such file")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise InputError(f"{file}: not a tokenizer.json: {error}") from error


def end_of_text_id(tokenizer, name):
    for candidate in (name,) if name else END_OF_TEXT:
        token = tokenizer.token_to_id(candidate)
        if token is not None:
            return token
    if name:
        raise InputError(f"--eod {name}: the tokenizer has no such token")
    raise InputError("the tokenizer has none of " + ", ".join(END_OF_TEXT) +
                     ": give --eod TOKEN or --no-eod")


def batched(items, size):
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


def write_tokens(out, documents, tokenizer, eod, dtype):
    """Returns the length of each sequence."""
    lengths = []
    for batch in batched(documents, BATCH):
        for encoded in tokenizer.encode_batch(batch, add_special_tokens=False):
            ids = encoded.ids + ([] if eod is None else [eod])
            if encoded.ids:
                out.write(np.asarray(ids, dtype=dtype).tobytes())
                lengths.append(len(ids))
    return lengths


def write_index(out, lengths, dtype):
    sizes = np.asarray(lengths, dtype=np.int32)
    ends = np.cumsum(sizes, dtype=np.int64) * dtype.itemsize
    offsets = np.concatenate((np.zeros(1, dtype=np.int64), ends[:-1]))
    boundaries = np.arange(len(sizes) + 1, dtype=np.int64)  # every sequence is a document
    out.write(MAGIC + struct.pack("<QBQQ", VERSION, DTYPE_CODES[dtype], len(sizes), len(boundaries)))
    for part in (sizes, offsets, boundaries):
        out.write(part.tobytes())


def convert(args):
    tokenizer = load_tokenizer(args.tokenizer)
    eod = None if args.no_eod else end_of_text_id(tokenizer, args.eod)
    vocabulary = tokenizer.get_vocab_size(with_added_tokens=True)
    dtype = np.dtype(np.uint16 if vocabulary <= 65536 else np.int32)
    files = [pathlib.Path(f"{args.output}.{end}") for end in ("bin", "idx")]
    for file in files:
        if file.exists() and not args.force:
            raise InputError(f"{file}: already exists; --force overwrites it")
    for path in args.input:
        if not path.is_file():
            raise InputError(f"{path}: no such file")
    temporary = [file.with_name(file.name + ".tmp") for file in files]
    documents = itertools.chain.from_iterable(
        read_documents(path, args.split, args.json_key) for path in args.input)
    try:
        with open(temporary[0], "wb") as out:
            lengths = write_tokens(out, documents, tokenizer, eod, dtype)
        if not lengths:
            raise InputError("the input holds no token")
        with open(temporary[1], "wb") as out:
            write_index(out, lengths, dtype)
        for made, file in zip(temporary, files):
            os.replace(made, file)
    finally:
        for made in temporary:
            made.unlink(missing_ok=True)
    print(f"{args.output}: {len(lengths)} documents, {sum(lengths)} tokens, vocabulary {vocabulary}, "
          f"{dtype.name}")


def main():
    parser = argparse.ArgumentParser(
        description="Turns text into Megatron-LM PREFIX.bin and PREFIX.idx with a Hugging Face "
                    "tokenizer.")
    parser.add_argument("input", nargs="+", type=pathlib.Path, metavar="INPUT",
                        help="UTF-8 text, or JSON lines with --json-key")
    parser.add_argument("--tokenizer", required=True, type=pathlib.Path, metavar="FILE_OR_DIR",
                        help="tokenizer.json, or a Hugging Face directory that holds it")
    parser.add_argument("--output", required=True, metavar="PREFIX", help="writes PREFIX.bin, .idx")
    parser.add_argument("--split", choices=("file", "line", "blank"), default="file",
                        help="what is a document: the file (default), a line, or a paragraph "
                             "between blank lines")
    parser.add_argument("--json-key", metavar="KEY",
                        help="inputs are JSON lines; a document is the text under KEY")
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--eod", metavar="TOKEN", help="token after each document (default: the first "
                                                    f"known of {', '.join(END_OF_TEXT)})")
    end.add_argument("--no-eod", action="store_true", help="no token after a document")
    parser.add_argument("--force", action="store_true", help="overwrite PREFIX.bin and PREFIX.idx")
    args = parser.parse_args()
    try:
        convert(args)
    except InputError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"{error.filename or args.output}: {error.strerror}")


if __name__ == "__main__":
    main()
