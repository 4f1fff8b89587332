"""A job that trains in milliseconds, for scripts that test clusters."""

import json
import pathlib

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": True,
    "initializer_range": 0.02,
}

JOB = """[model]
hf = "tiny"
[data]
kind = "mock"
mock_tokens = 65536
validation_fraction = 0.0
[training]
seq_len = 8
micro_batch_size = 1
global_batch_size = {batch}
validation_interval = 0
[parallelism]
data_parallel_degree = {dp}
logical_data_parallel = {logical}
zero_stage = {zero}
[checkpoint]
interval = 0
[log]
interval = 1000
sample_tokens = 0
"""


def write_job(folder, dp, zero, logical=0):
    """Writes the model and job.toml below folder; one micro-batch a logical rank. Its path."""
    folder = pathlib.Path(folder)
    (folder / "tiny").mkdir()
    (folder / "tiny" / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    job = folder / "job.toml"
    job.write_text(JOB.format(batch=logical or dp, dp=dp, logical=logical, zero=zero),
                   encoding="utf-8")
    return job


def metrics(run_dir):
    """Whole lines of metrics.jsonl so far."""
    path = pathlib.Path(run_dir) / "metrics.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]


def loss_bits(run_dir):
    return [line["loss_bits"] for line in metrics(run_dir)]
