// sgactor ckpt ls|show|verify|export|import|diff: looks after checkpoints.
#include "apps/sgactor/ckpt_diff.h"
#include "apps/sgactor/command_line.h"
#include "apps/sgactor/hf_export.h"
#include "apps/sgactor/hf_import.h"
#include "apps/sgactor/trained_model.h"
#include "graph/base/hash.h"
#include "graph/base/units.h"
#include "transport/storage/checkpoint.h"

#include <CLI/CLI.hpp>

#include <filesystem>
#include <iostream>
#include <memory>

namespace sgactor::apps {
namespace {

struct CkptOptions {
  std::string from;
  std::string to;
  bool tensors = false;
};

bool is_step_dir(const std::string& path) {
  std::error_code error;
  const std::filesystem::path p(path);
  return std::filesystem::exists(p / "manifest.bin", error) ||
         (p.has_filename() ? p.filename() : p.parent_path().filename())
             .string()
             .starts_with("step-");
}

/// As list_checkpoints, of the one step directory.
transport::CheckpointListing list_step(const std::string& dir) {
  transport::CheckpointListing listing;
  listing.path = dir;
  const auto checkpoint = transport::Checkpoint::open(dir);
  listing.status = checkpoint.status();
  if (!checkpoint.ok()) return listing;
  const transport::CheckpointInfo& info = (*checkpoint)->info();
  listing.step = info.step;
  for (const transport::TensorRecord& t : info.tensors) listing.bytes += t.type.bytes();
  return listing;
}

Result<std::vector<transport::CheckpointListing>> listings(const std::string& from) {
  std::error_code error;
  const bool is_run = std::filesystem::is_directory(from + "/ckpt", error);
  if (is_run || !is_step_dir(from) || !std::filesystem::is_directory(from, error))
    return transport::list_checkpoints(from);
  return std::vector{list_step(from)};
}

Result<int> list(const CkptOptions& options) {
  SGA_ASSIGN(const auto found, listings(options.from));
  for (const transport::CheckpointListing& c : found) {
    std::cout << fmt::format("{:>10}  {:>12}  {}  {}\n", c.step, format_bytes(c.bytes), c.path,
                             c.status.ok() ? "whole" : c.status.message());
  }
  if (found.empty()) return invalid_argument(options.from + ": holds no checkpoint");
  return kExitDone;
}

Result<int> show(const CkptOptions& options) {
  std::string dir = options.from;
  if (!is_step_dir(dir)) {
    SGA_ASSIGN(dir, transport::newest_checkpoint(options.from, nullptr));
  }
  SGA_ASSIGN(const auto checkpoint, transport::Checkpoint::open(dir));
  const transport::CheckpointInfo& info = checkpoint->info();
  int64_t bytes = 0;
  for (const transport::TensorRecord& t : info.tensors) bytes += t.type.bytes();
  std::cout << fmt::format(
      "path             {}\nstep             {}\nrun state        {}\nschema_hash      {}\n"
      "runtime_version  {}\nmesh             {}\ndata             seed {}, {} steps consumed\n"
      "tensors          {}, {}\n",
      info.path, info.step, info.run_state, hex64(info.schema_hash), info.runtime_version,
      info.mesh, info.data_seed, info.data_position, info.tensors.size(), format_bytes(bytes));
  if (!options.tensors) return kExitDone;
  for (const transport::TensorRecord& t : info.tensors)
    std::cout << fmt::format("  {:<60} {:<24} {}\n", t.name, t.type.to_string(), t.segment);
  return kExitDone;
}

Result<int> verify(const CkptOptions& options) {
  std::vector<std::string> dirs;
  if (is_step_dir(options.from)) {
    dirs.push_back(options.from);
  } else {
    SGA_ASSIGN(const auto found, transport::list_checkpoints(options.from));
    for (const auto& c : found) dirs.push_back(c.path);
  }
  if (dirs.empty()) return invalid_argument(options.from + ": holds no checkpoint");
  Status first_bad;
  for (const std::string& dir : dirs) {
    const Status s = transport::verify_checkpoint(dir);
    std::cout << fmt::format("{}  {}\n", s.ok() ? "ok " : "bad", dir);
    if (!s.ok() && first_bad.ok()) first_bad = s;
  }
  SGA_TRY(first_bad);
  return kExitDone;
}

Result<int> export_weights(const CkptOptions& options) {
  SGA_TRY(check_new_directory("export to", options.to));
  SGA_ASSIGN(const TrainedModel model, open_model(options.from));
  SGA_TRY(export_hf(model.config, *model.state, model.tokenizer, options.to));
  std::cout << fmt::format("exported {} to {}\n", model.found, options.to);
  return kExitDone;
}

Result<int> import_weights(const CkptOptions& options) {
  const auto dir = import_hf(options.from, options.to);
  std::error_code error;
  // A directory that cannot be made is a wrong command; a failure to write into it is not.
  if (!dir.ok() && dir.status().code() == Code::kInternal &&
      !std::filesystem::is_directory(options.to + "/ckpt", error))
    return invalid_argument("import to " + options.to + ": " + dir.status().message());
  SGA_TRY(dir.status());
  std::cout << fmt::format("imported {} to {}\n", options.from, *dir);
  return kExitDone;
}

void add_action(CLI::App* parent, CommandLine& line, const char* name, const char* help,
                const char* from_help, const char* to_help,
                Result<int> (*action)(const CkptOptions&)) {
  CLI::App* sub = parent->add_subcommand(name, help);
  auto options = std::make_shared<CkptOptions>();
  sub->add_option("from", options->from, from_help)->required();
  if (to_help != nullptr) sub->add_option("to", options->to, to_help)->required();
  if (std::string_view(name) == "show")
    sub->add_flag("--tensors", options->tensors, "also every tensor");
  sub->callback(
      [&line, options, action] { line.action = [options, action] { return action(*options); }; });
}

}  // namespace

void add_ckpt(CLI::App& app, CommandLine& line) {
  CLI::App* ckpt =
      app.add_subcommand("ckpt", "list, show, verify, export, import, compare checkpoints");
  ckpt->require_subcommand(1);
  const char* any = "run directory, its ckpt/, or a step directory";
  add_action(ckpt, line, "ls", "list checkpoints, and why one is not whole", any, nullptr, list);
  add_action(ckpt, line, "show", "what a checkpoint holds", any, nullptr, show);
  add_action(ckpt, line, "verify", "read every byte and check every hash", any, nullptr, verify);
  add_action(ckpt, line, "export", "write the weights as a Hugging Face directory", any,
             "Hugging Face directory to make", export_weights);
  add_action(ckpt, line, "import", "make a checkpoint of a Hugging Face directory's weights",
             "Hugging Face directory", "directory to make", import_weights);
  add_ckpt_diff(*ckpt, line);
}

}  // namespace sgactor::apps
