// sgactor init: a commented job file on standard output.
#include "apps/sgactor/command_line.h"
#include "apps/sgactor/model_source.h"

#include <CLI/CLI.hpp>

#include <iostream>
#include <memory>

namespace sgactor::apps {
namespace {

constexpr const char* kHead =
    "# A job file of sgactor. `sgactor train FILE` runs it as it stands, on made-up data;\n"
    "# --section.key=value on the command line overrides a key. Every key may be left out.\n\n";

Result<int> init(const CommandLine& line, const std::string& preset) {
  JobSpec job;
  job.model.preset = preset;
  SGA_TRY(load_model(job).status());  // an unknown preset is refused here, with the names
  // Overrides go through the parser, so that they are checked as in any job file.
  SGA_ASSIGN(job, parse_job(write_job(job, false), "", line.overrides));
  std::cout << kHead << write_job(job, true);
  return kExitDone;
}

}  // namespace

void add_init(CLI::App& app, CommandLine& line) {
  CLI::App* sub = app.add_subcommand("init", "print a commented job file");
  auto preset = std::make_shared<std::string>("llama-tiny");
  sub->add_option("--preset", *preset, "model preset")->capture_default_str();
  sub->callback([&line, preset] { line.action = [&line, preset] { return init(line, *preset); }; });
}

}  // namespace sgactor::apps
