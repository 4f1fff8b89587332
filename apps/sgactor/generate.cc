// sgactor generate: a sampled continuation from a run or a Hugging Face directory.
#include "apps/sgactor/command_line.h"
#include "apps/sgactor/device.h"
#include "apps/sgactor/text_sampler.h"
#include "apps/sgactor/trained_model.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>

namespace sgactor::apps {
namespace {

struct GenerateOptions {
  std::string source;
  std::string prompt;
  std::string tokenizer;
  std::string devices = "cpu";
  int64_t context = 0;
  SamplingOptions sampling;
};

/// Attention is quadratic, so the default window is bounded where the model's is not.
constexpr int64_t kDefaultContext = 1024;

Result<int> generate(const CommandLine& line, const GenerateOptions& options) {
  SGA_ASSIGN(const TrainedModel model, open_model(options.source));
  const std::string name = options.tokenizer.empty() ? model.tokenizer : options.tokenizer;
  if (name.empty()) {
    return invalid_argument(options.source + ": has no tokenizer; name one with --tokenizer FILE");
  }
  SGA_ASSIGN(const auto tokenizer, transport::create_tokenizer(name));
  SGA_ASSIGN(const DeviceSpec device, parse_devices(options.devices));
  SGA_ASSIGN(const auto backend, create_device(*line.backends, device));
  const int64_t trained = model.seq_len > 0 ? model.seq_len : kDefaultContext;
  const int64_t context = options.context > 0
                              ? options.context
                              : std::min(trained, model.config.max_position_embeddings);
  TextSampler sampler(model.config, context, *backend, *model.state);
  // With the token that begins a text.
  const auto prompt_tokens = static_cast<int64_t>(tokenizer->encode(options.prompt).size()) + 1;
  SGA_TRY(sampler.check_memory(prompt_tokens + options.sampling.max_tokens));
  SGA_TRY(print_continuation(sampler, *tokenizer, model.config.vocab_size, options.prompt,
                             options.sampling));
  return kExitDone;
}

/// CLI::Range lets NaN through, because no comparison with it holds.
std::string check_temperature(const std::string& text) {
  double value = 0;
  if (CLI::detail::lexical_cast(text, value) && value >= 0 && value <= 100) return "";
  return "expected a number from 0 to 100, got " + text;
}

/// The conversion to an unsigned number would wrap a negative one around.
std::string check_seed(const std::string& text) {
  return text.find('-') == std::string::npos ? ""
                                             : "expected an integer of at least 0, got " + text;
}

}  // namespace

void add_generate(CLI::App& app, CommandLine& line) {
  CLI::App* sub = app.add_subcommand("generate", "continue a text with a trained model");
  auto options = std::make_shared<GenerateOptions>();
  sub->add_option("source", options->source, "run directory, checkpoint or Hugging Face directory")
      ->required();
  sub->add_option("--prompt", options->prompt, "text to continue")->required();
  sub->add_option("--max-tokens", options->sampling.max_tokens, "length of the continuation")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  sub->add_option("--temperature", options->sampling.temperature, "0: always the likeliest token")
      ->check(check_temperature)
      ->capture_default_str();
  sub->add_option("--top-k", options->sampling.top_k, "draw among the k likeliest; 0: all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24))
      ->capture_default_str();
  sub->add_option("--seed", options->sampling.seed, "of the draws")
      ->check(check_seed)
      ->capture_default_str();
  sub->add_option("--tokenizer", options->tokenizer, "instead of the model's own");
  sub->add_option("--context", options->context, "tokens that the model sees; 0: as trained")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20));
  sub->add_option("--devices", options->devices, "as for train")->capture_default_str();
  sub->callback(
      [&line, options] { line.action = [&line, options] { return generate(line, *options); }; });
}

}  // namespace sgactor::apps
