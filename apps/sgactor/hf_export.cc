#include "apps/sgactor/hf_export.h"

#include "transport/storage/run_files.h"

#include <unistd.h>

#include <filesystem>

namespace sgactor::apps {
namespace {

namespace fs = std::filesystem;

Status fill(const graph::LlamaConfig& config, const LoadedParameters& parameters,
            const std::string& tokenizer, const std::string& dir) {
  SGA_TRY(transport::write_file_atomic(dir + "/config.json", graph::to_hf_config(config)));
  SGA_TRY(transport::write_hf_weights(dir, parameters.tensors()));
  if (tokenizer.empty() || tokenizer == "bytes") return {};
  std::error_code error;
  fs::path file = tokenizer;
  if (fs::is_directory(file, error)) {
    const bool json = fs::exists(file / "tokenizer.json", error);
    file /= json ? "tokenizer.json" : "tokenizer.model";
  }
  const char* name = file.extension() == ".json" ? "tokenizer.json" : "tokenizer.model";
  fs::copy_file(file, fs::path(dir) / name, error);
  if (!error) return {};
  return invalid_argument(file.string() + ": cannot copy the tokenizer: " + error.message());
}

}  // namespace

std::vector<transport::NamedTensor> LoadedParameters::tensors() const {
  std::vector<transport::NamedTensor> out;
  for (size_t i = 0; i < specs.size(); ++i) out.push_back({specs[i].name, specs[i].type, bytes[i]});
  return out;
}

Result<LoadedParameters> load_parameters(const graph::LlamaConfig& config,
                                         const transport::StateSource& state) {
  LoadedParameters loaded;
  loaded.specs = graph::llama_parameters(config);
  for (const graph::ParameterSpec& spec : loaded.specs) {
    std::vector<std::byte>& bytes = loaded.bytes.emplace_back();
    bytes.resize(static_cast<size_t>(spec.type.bytes()));
    SGA_TRY(state.load(spec.name, spec.type, bytes));
  }
  return loaded;
}

Status check_new_directory(const std::string& what, const std::string& dir) {
  std::error_code error;
  const fs::file_status status = fs::status(dir, error);
  if (status.type() == fs::file_type::not_found) return {};
  if (fs::is_directory(status) && fs::is_empty(dir, error) && !error) return {};
  return invalid_argument(what + " " + dir + ": exists already; name another");
}

Status export_hf(const graph::LlamaConfig& config, const transport::StateSource& state,
                 const std::string& tokenizer, const std::string& out_dir) {
  SGA_TRY(check_new_directory("export to", out_dir));
  SGA_ASSIGN(const LoadedParameters parameters, load_parameters(config, state));
  // "hf/" would put the temporary directory inside the one it is to become.
  const std::string temporary =
      out_dir.substr(0, out_dir.find_last_not_of('/') + 1) + ".tmp" + std::to_string(getpid());
  std::error_code error;
  fs::create_directories(temporary, error);
  if (error) return invalid_argument(temporary + ": cannot create: " + error.message());
  Status status = fill(config, parameters, tokenizer, temporary);
  if (status.ok()) {
    fs::rename(temporary, out_dir, error);  // replaces an empty directory
    if (error) status = invalid_argument(out_dir + ": cannot create: " + error.message());
  }
  if (!status.ok()) fs::remove_all(temporary, error);
  return status;
}

}  // namespace sgactor::apps
