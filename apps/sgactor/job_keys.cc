#include "apps/sgactor/job_keys.h"

#include "apps/sgactor/printable.h"
#include "graph/base/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace sgactor::apps {
namespace {

constexpr double kHuge = 1e15;

constexpr KeyLimits any() { return {}; }
constexpr KeyLimits path() {
  KeyLimits l;
  l.is_path = true;
  return l;
}
constexpr KeyLimits one_of(std::string_view choices) {
  KeyLimits l;
  l.choices = choices;
  return l;
}
constexpr KeyLimits range(double low, double high) {
  KeyLimits l;
  l.ranged = true;
  l.low = low;
  l.high = high;
  return l;
}
constexpr KeyLimits range_or_auto(double low, double high) {
  KeyLimits l = range(low, high);
  l.auto_ok = true;
  return l;
}
constexpr KeyLimits at_least(double low) { return range(low, kHuge); }
constexpr KeyLimits above(double low) {
  KeyLimits l = range(low, kHuge);
  l.low_open = true;
  return l;
}
/// low <= x < high
constexpr KeyLimits below(double low, double high) {
  KeyLimits l = range(low, high);
  l.high_open = true;
  return l;
}

#define SGA_FIELD(member) [](JobSpec& job) -> KeyField { return &job.member; }

constexpr JobSection kSections[] = {
    {"model", "What is trained. Give `preset` or `hf`."},
    {"data", "Where tokens come from."},
    {"training", "How long and how much at a time."},
    {"optimizer", "AdamW with decoupled decay, linear warm-up, cosine to min_lr."},
    {"parallelism", "The mesh of logical ranks."},
    {"resilience", "What protects the state between checkpoints."},
    {"checkpoint", "Checkpoints lie in the run directory, below ckpt/."},
    {"compile", "The graph compiler."},
    {"log", "What a run shows and records."},
    {"profile", "Measured times, from one run to the plan of the next."},
    {"strategy", "How the work is spread, beyond the mesh."},
    {"plugins", "Strategies in shared libraries."},
};

// The whole job file. Types follow from the fields, defaults from JobSpec's initialisers.
constexpr JobKey kKeys[] = {
    {"model", "preset", SGA_FIELD(model.preset), any(),
     "llama-tiny, llama-15m, llama-125m, llama-1b, llama-8b or llama-70b"},
    {"model", "hf", SGA_FIELD(model.hf), path(),
     "instead of a preset: a Hugging Face directory or its config.json"},
    {"model", "vocab_size", SGA_FIELD(model.vocab_size), range(0, 1 << 24),
     "replaces the model's vocabulary size; 0 keeps it"},
    {"model", "weights", SGA_FIELD(model.weights), path(),
     "start from these weights: a Hugging Face directory, a run or a checkpoint"},
    {"data", "kind", SGA_FIELD(data.kind), one_of("text|megatron|mock"),
     "text: a file of text; megatron: .bin and .idx; mock: made-up tokens, needs no file"},
    {"data", "path", SGA_FIELD(data.path), path(),
     "the text file, or the common prefix of .bin and .idx; relative to this file"},
    {"data", "tokenizer", SGA_FIELD(data.tokenizer), path(),
     "\"bytes\", a SentencePiece .model or a Hugging Face tokenizer.json"},
    {"data", "mock_tokens", SGA_FIELD(data.mock_tokens), at_least(2), "length of mock data"},
    {"data", "validation_fraction", SGA_FIELD(data.validation_fraction), below(0, 1),
     "this last part of the data is held out for validation"},
    {"data", "shuffle", SGA_FIELD(data.shuffle), any(),
     "each epoch is one permutation of all windows, given by the seed; false: in order"},
    {"training", "steps", SGA_FIELD(training.steps), at_least(1), "optimizer steps"},
    {"training", "seq_len", SGA_FIELD(training.seq_len), range(1, 1 << 20), "tokens a sequence"},
    {"training", "micro_batch_size", SGA_FIELD(training.micro_batch_size), range_or_auto(1, 4096),
     "sequences in one forward and backward pass of one logical rank; \"auto\": measured, changed "
     "between steps only, which changes the order of sums"},
    {"training", "micro_batch_start", SGA_FIELD(training.micro_batch_start), range(0, 4096),
     "the size that \"auto\" begins with; 0: up to 4"},
    {"training", "global_batch_size", SGA_FIELD(training.global_batch_size), range(1, 1 << 20),
     "sequences a step; a multiple of micro_batch_size times the data-parallel ranks"},
    {"training", "seed", SGA_FIELD(training.seed), at_least(0),
     "of initial weights and of the order of the data"},
    {"training", "dtype", SGA_FIELD(training.dtype), one_of("f32|bf16|fp8"),
     "of matmuls and activations; master weights, moments and sums are f32 in any case; \"fp8\": "
     "bf16, and 8-bit operands of the layers' matmuls"},
    {"training", "recompute", SGA_FIELD(training.recompute), one_of("none|selective|full"),
     "what the backward pass computes again instead of keeping it; the bits stay the same"},
    {"training", "memory_budget", SGA_FIELD(training.memory_budget), any(),
     "most memory of a rank's arena, as \"24 GiB\", which selective recompute keeps to"},
    {"training", "validation_interval", SGA_FIELD(training.validation_interval), at_least(0),
     "steps between validations; 0: none"},
    {"training", "validation_batches", SGA_FIELD(training.validation_batches), range(1, 1 << 20),
     "micro-batches of a validation, the same ones each time"},
    {"optimizer", "name", SGA_FIELD(optimizer.name), one_of("adamw"), "the update rule"},
    {"optimizer", "lr", SGA_FIELD(optimizer.lr), above(0), "highest learning rate"},
    {"optimizer", "min_lr", SGA_FIELD(optimizer.min_lr), at_least(0),
     "learning rate at the end of the cosine"},
    {"optimizer", "warmup_steps", SGA_FIELD(optimizer.warmup_steps), at_least(0),
     "steps of linear warm-up"},
    {"optimizer", "decay_steps", SGA_FIELD(optimizer.decay_steps), at_least(0),
     "step at which the cosine reaches min_lr; 0: training.steps"},
    {"optimizer", "beta1", SGA_FIELD(optimizer.beta1), below(0, 1), "decay of the first moment"},
    {"optimizer", "beta2", SGA_FIELD(optimizer.beta2), below(0, 1), "decay of the second moment"},
    {"optimizer", "eps", SGA_FIELD(optimizer.eps), above(0), "added to the root"},
    {"optimizer", "weight_decay", SGA_FIELD(optimizer.weight_decay), at_least(0),
     "decoupled decay of matrices"},
    {"optimizer", "max_grad_norm", SGA_FIELD(optimizer.max_grad_norm), at_least(0),
     "clips the global gradient norm; 0: no clipping"},
    {"parallelism", "data_parallel_degree", SGA_FIELD(parallelism.data_parallel_degree),
     range(1, 65536), "workers that hold a copy each"},
    {"parallelism", "tensor_parallel_degree", SGA_FIELD(parallelism.tensor_parallel_degree),
     range(1, 4096), "workers that share each matrix"},
    {"parallelism", "pipeline_parallel_degree", SGA_FIELD(parallelism.pipeline_parallel_degree),
     range(1, 4096), "stages of layers"},
    {"parallelism", "zero_stage", SGA_FIELD(parallelism.zero_stage), range(0, 3),
     "shards optimizer state (1), gradients (2), parameters (3) over the data-parallel ranks"},
    {"parallelism", "logical_data_parallel", SGA_FIELD(parallelism.logical_data_parallel),
     range(0, 65536), "logical data-parallel ranks, which fix the bits; 0: data_parallel_degree"},
    {"parallelism", "reduction", SGA_FIELD(parallelism.reduction), one_of("exact|fast"),
     "exact: a fixed tree over logical ranks; fast: in the order of a ring of them, the same bits "
     "in "
     "every run, others with another zero_stage"},
    {"parallelism", "schedule", SGA_FIELD(parallelism.schedule), one_of("1f1b|interleaved|gpipe"),
     "order of micro-batches in a pipeline; the bits stay the same"},
    {"resilience", "mode", SGA_FIELD(resilience.mode), one_of("auto|off|replicas|mirror"),
     "where the state of a lost worker comes from; auto: mirror, where there are workers"},
    {"resilience", "mirror_interval", SGA_FIELD(resilience.mirror_interval), at_least(1),
     "steps between copies of the state in memory"},
    {"resilience", "max_faults", SGA_FIELD(resilience.max_faults), range(0, 1000000),
     "faults a minute that a run recovers from; more end it"},
    {"resilience", "orphan_timeout", SGA_FIELD(resilience.orphan_timeout), at_least(0),
     "seconds that workers wait for another coordinator when theirs has died; 0: not"},
    {"resilience", "progress_factor", SGA_FIELD(resilience.progress_factor), at_least(0),
     "a run in which nothing happens for that many steps' time hangs; 0: never"},
    {"resilience", "progress_floor", SGA_FIELD(resilience.progress_floor), above(0),
     "seconds; a shorter standstill is no hang"},
    {"resilience", "check_frames", SGA_FIELD(resilience.check_frames), one_of("auto|on|off"),
     "checksums on what travels between workers; auto: where it leaves the host's memory, without "
     "payloads above 64 KiB"},
    {"resilience", "verify_interval", SGA_FIELD(resilience.verify_interval), at_least(0),
     "steps; the gradients of every such step are executed again by another rank and compared; "
     "0: never"},
    {"resilience", "allow_inexact", SGA_FIELD(resilience.allow_inexact), any(),
     "a worker, or a resume, with other arithmetic may go on with a rank; bits may differ from "
     "there on"},
    {"checkpoint", "interval", SGA_FIELD(checkpoint.interval), at_least(0),
     "steps between checkpoints; 0: only at the end"},
    {"checkpoint", "keep", SGA_FIELD(checkpoint.keep), at_least(0),
     "newest checkpoints that stay; 0: all"},
    {"checkpoint", "export_hf", SGA_FIELD(checkpoint.export_hf), any(),
     "also write the final weights as a Hugging Face directory, hf/ in the run directory"},
    {"compile", "fuse", SGA_FIELD(compile.fuse), any(),
     "fused ops: attention, norms, SwiGLU, AdamW"},
    {"compile", "disable_passes", SGA_FIELD(compile.disable_passes), any(),
     "passes to leave out; those that can be: fuse_ops"},
    {"compile", "f8_layout", SGA_FIELD(compile.f8_layout), one_of("auto|any|inner_last"),
     "of 8-bit operands; \"inner_last\": the dim that is summed over last, as cuda wants it; "
     "\"auto\": as the device wants it"},
    {"compile", "f8_head", SGA_FIELD(compile.f8_head), one_of("auto|true|false"),
     "with training.dtype = \"fp8\": the head and its gradients read 8-bit operands too; "
     "\"auto\": they do where the head is fused"},
    {"compile", "head_room", SGA_FIELD(compile.head_room), any(),
     "of the workspace, for a block of logits of the fused head, as \"2 GiB\"; \"auto\": what the "
     "device wants (cuda: 2 GiB, in 8 bits 4 GiB); \"none\": the device finds a place beside "
     "the plan"},
    {"compile", "bucket_size", SGA_FIELD(compile.bucket_size), any(),
     "of gradients and parameters that travel together over data-parallel ranks: \"segment\", "
     "bytes as \"25 MiB\", or \"auto\": by predicted times; the bits stay the same"},
    {"compile", "topology", SGA_FIELD(compile.topology), path(),
     "cluster file whose links and devices predict times; empty: H200 and NVLink"},
    {"log", "interval", SGA_FIELD(log.interval), at_least(1),
     "steps between progress lines; metrics.jsonl has every step"},
    {"log", "trace_steps", SGA_FIELD(log.trace_steps), range(0, 10000),
     "write a Chrome trace of this many first steps; 0: none"},
    {"log", "level", SGA_FIELD(log.level), one_of("trace|debug|info|warn|error|off"),
     "of messages on standard error"},
    {"log", "sample_prompt", SGA_FIELD(log.sample_prompt), any(),
     "start of the text that is sampled at the end"},
    {"log", "sample_tokens", SGA_FIELD(log.sample_tokens), range(0, 1 << 20),
     "length of the sampled continuation at the end; 0: none"},
    {"log", "tensorboard", SGA_FIELD(log.tensorboard), any(),
     "write the numbers of metrics.jsonl to RUN/tensorboard too, for TensorBoard"},
    {"log", "status_page", SGA_FIELD(log.status_page), any(),
     "HOST:PORT where the run answers HTTP: /, /status, /metrics, /healthz; port 0: any free one; "
     "without a password, so for loopback or a private network; empty: nowhere"},
    {"profile", "use", SGA_FIELD(profile.use), path(),
     "a profile that a run has recorded: stages, prefetch and buckets go by its times"},
    {"profile", "record", SGA_FIELD(profile.record), path(),
     "write the times of this run's first steps to this file at its end"},
    {"strategy", "name", SGA_FIELD(strategy.name), any(),
     "\"mesh\", \"replicated-vocabulary\", or one that a plug-in adds"},
    {"strategy", "options", SGA_FIELD(strategy.options), any(),
     "what the strategy is told, as \"name=value\""},
    {"plugins", "libraries", SGA_FIELD(plugins.libraries), any(),
     "shared libraries to load; each is there on every host"},
};
#undef SGA_FIELD

template <class... F>
struct Overload : F... {
  using F::operator()...;
};
template <class... F>
Overload(F...) -> Overload<F...>;

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04X}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

/// Shortest text that reads back to the same double and that TOML takes for a float.
std::string toml_float(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string join_choices(std::string_view choices) {
  std::string out;
  for (const char c : choices) out += c == '|' ? std::string(", ") : std::string(1, c);
  return out;
}

bool is_choice(std::string_view choices, std::string_view value) {
  while (true) {
    const size_t bar = choices.find('|');
    if (choices.substr(0, bar) == value) return true;
    if (bar == std::string_view::npos) return false;
    choices.remove_prefix(bar + 1);
  }
}

std::string bound(double value, bool integer) {
  return integer ? fmt::format("{:.0f}", value) : fmt::format("{}", value);
}

bool in_range(const KeyLimits& limits, double value) {
  if (!std::isfinite(value)) return false;
  if (!limits.ranged) return true;
  if (limits.low_open ? value <= limits.low : value < limits.low) return false;
  return limits.high_open ? value < limits.high : value <= limits.high;
}

template <class T>
bool parse_whole(std::string_view text, T* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

/// Names that other trainers have for a key, or short ones.
struct KeyAlias {
  std::string_view name;
  std::string_view meant;
};
constexpr KeyAlias kAliases[] = {
    {"lr", "optimizer.lr"},
    {"learning_rate", "optimizer.lr"},
    {"max_lr", "optimizer.lr"},
    {"batch_size", "training.global_batch_size or training.micro_batch_size"},
    {"train_batch_size", "training.global_batch_size"},
    {"per_device_train_batch_size", "training.micro_batch_size"},
    {"gradient_accumulation_steps",
     "training.global_batch_size, which is training.micro_batch_size times data-parallel ranks "
     "times accumulated micro-batches"},
    {"seq_length", "training.seq_len"},
    {"sequence_length", "training.seq_len"},
    {"max_steps", "training.steps"},
    {"train_iters", "training.steps"},
    {"clip_grad", "optimizer.max_grad_norm"},
    {"precision", "training.dtype"},
    {"bf16", "training.dtype = \"bf16\""},
    {"bfloat16", "training.dtype = \"bf16\""},
    {"fp8", "training.dtype = \"fp8\""},
    {"activation_checkpointing", "training.recompute"},
    {"gradient_checkpointing", "training.recompute"},
    {"tensor_model_parallel_size", "parallelism.tensor_parallel_degree"},
    {"pipeline_model_parallel_size", "parallelism.pipeline_parallel_degree"},
    {"data_parallel_size", "parallelism.data_parallel_degree"},
    {"dp", "parallelism.data_parallel_degree"},
    {"tp", "parallelism.tensor_parallel_degree"},
    {"pp", "parallelism.pipeline_parallel_degree"},
    {"zero", "parallelism.zero_stage"},
    {"save_interval", "checkpoint.interval"},
};
// Two edits turn any shorter name into any other.
constexpr size_t kShortestGuess = 3;

Status wrong(const JobKey& key, std::string_view got) {
  return invalid_argument("expected " + expectation(key) + ", got " + std::string(got));
}

}  // namespace

std::span<const JobKey> job_keys() { return kKeys; }
std::span<const JobSection> job_sections() { return kSections; }

const JobKey* find_job_key(std::string_view full_name) {
  for (const JobKey& key : kKeys) {
    if (key.full_name() == full_name) return &key;
  }
  return nullptr;
}

std::string nearest_key_hint(std::string_view full_name) {
  const size_t dot = full_name.find('.');
  const std::string_view section = dot == std::string_view::npos ? "" : full_name.substr(0, dot);
  const std::string_view name =
      dot == std::string_view::npos ? full_name : full_name.substr(dot + 1);
  for (const KeyAlias& alias : kAliases) {
    if (name == alias.name) return "; did you mean " + std::string(alias.meant) + "?";
  }
  if (name.size() < kShortestGuess) return "";
  const JobKey* best = nullptr;
  int best_cost = 0;
  for (const JobKey& key : kKeys) {
    // The same word in another section beats a near word in this one: sections are easy to confuse.
    const int name_cost = edit_distance(name, key.name);
    const int section_cost = std::min(edit_distance(section, key.section), 2);
    const int cost = 4 * name_cost + section_cost;
    if (name_cost > std::max<int>(2, static_cast<int>(key.name.size()) / 3)) continue;
    if (best == nullptr || cost < best_cost) {
      best = &key;
      best_cost = cost;
    }
  }
  return best == nullptr ? "" : "; did you mean " + best->full_name() + "?";
}

std::string expectation(const JobKey& key) {
  JobSpec job;
  const KeyField field = key.field(job);
  if (std::holds_alternative<bool*>(field)) return "true or false";
  if (std::holds_alternative<std::vector<std::string>*>(field)) return "a list of strings";
  if (std::holds_alternative<std::string*>(field)) {
    return key.limits.choices.empty() ? "a string" : "one of " + join_choices(key.limits.choices);
  }
  const bool integer = std::holds_alternative<int64_t*>(field);
  std::string text = integer ? "an integer" : "a number";
  const KeyLimits& l = key.limits;
  if (!l.ranged) return text;
  const bool bounded = l.high < kHuge;
  if (l.low_open) {
    text += " above " + bound(l.low, integer);
  } else {
    text += (bounded ? " from " : " of at least ") + bound(l.low, integer);
  }
  if (bounded) text += (l.high_open ? " to below " : " to ") + bound(l.high, integer);
  if (l.auto_ok) text += ", or \"auto\"";
  return text;
}

Status check_limits(const JobKey& key, JobSpec& job) {
  return std::visit(
      Overload{[&](int64_t* v) {
                 const bool is_auto = key.limits.auto_ok && *v == kAutoInteger;
                 return is_auto || in_range(key.limits, static_cast<double>(*v))
                            ? Status()
                            : wrong(key, std::to_string(*v));
               },
               [&](double* v) {
                 return in_range(key.limits, *v) ? Status() : wrong(key, fmt::format("{}", *v));
               },
               [&](std::string* v) {
                 return key.limits.choices.empty() || is_choice(key.limits.choices, *v)
                            ? Status()
                            : wrong(key, toml_string(*v));
               },
               [](auto*) { return Status(); }},
      key.field(job));
}

Status set_from_text(const JobKey& key, JobSpec& job, std::string_view text) {
  // TOML is UTF-8: job.resolved.toml could not hold the value.
  if (!is_utf8(text)) return invalid_argument("is not UTF-8");
  const std::string quoted = toml_string(text);
  SGA_TRY(std::visit(
      Overload{[&](int64_t* v) {
                 const bool is_auto = key.limits.auto_ok && text == "auto";
                 if (is_auto) *v = kAutoInteger;
                 return is_auto || parse_whole(text, v) ? Status() : wrong(key, quoted);
               },
               [&](double* v) { return parse_whole(text, v) ? Status() : wrong(key, quoted); },
               [&](bool* v) {
                 if (text != "true" && text != "false") return wrong(key, quoted);
                 *v = text == "true";
                 return Status();
               },
               [&](std::string* v) {
                 *v = text;
                 return Status();
               },
               [&](std::vector<std::string>* v) {
                 v->clear();
                 for (std::string_view rest = text; !rest.empty();) {
                   const size_t comma = rest.find(',');
                   if (comma != 0) v->emplace_back(rest.substr(0, comma));
                   rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
                 }
                 return Status();
               }},
      key.field(job)));
  return check_limits(key, job);
}

std::string value_as_toml(const JobKey& key, const JobSpec& job) {
  if (key.limits.auto_ok && job.training.auto_micro_batch) return toml_string("auto");
  // The table hands out writable fields; here they are only read.
  return std::visit(Overload{[](const int64_t* v) { return std::to_string(*v); },
                             [](const double* v) { return toml_float(*v); },
                             [](const bool* v) { return std::string(*v ? "true" : "false"); },
                             [](const std::string* v) { return toml_string(*v); },
                             [](const std::vector<std::string>* v) {
                               std::string out = "[";
                               for (size_t i = 0; i < v->size(); ++i)
                                 out += (i > 0 ? ", " : "") + toml_string((*v)[i]);
                               return out + "]";
                             }},
                    key.field(const_cast<JobSpec&>(job)));
}

}  // namespace sgactor::apps
