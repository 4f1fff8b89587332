#include "apps/sgactor/command_line.h"

#include "apps/sgactor/job_keys.h"
#include "apps/sgactor/printable.h"
#include "graph/base/units.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>

namespace sgactor::apps {
namespace {

constexpr const char* kVersion = SGA_VERSION;

bool is_override(std::string_view arg) {
  if (!arg.starts_with("--")) return false;
  const std::string_view key = arg.substr(2, arg.find('=') - 2);
  return key.find('.') != std::string_view::npos;
}

bool is_word(const std::string& arg) { return !arg.starts_with("-"); }

std::vector<const CLI::App*> subcommands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

/// The word behind "ckpt" or "bench".
Status check_nested(const CLI::App& parent, const std::string& word) {
  std::string known;
  for (const CLI::App* sub : subcommands(parent)) {
    if (word == sub->get_name()) return {};
    known += (known.empty() ? "" : ", ") + sub->get_name();
  }
  if (known.empty()) return {};
  return invalid_argument(parent.get_name() + ": unknown command '" + word + "'; expected one of " +
                          known);
}

/// The first word that is no option must name a subcommand: CLI11's own message does not say so.
Status check_command(const CLI::App& app, const std::vector<std::string>& args) {
  const auto word = std::find_if(args.begin(), args.end(), is_word);
  if (word == args.end()) return {};
  std::string best;
  int best_distance = 3;
  for (const CLI::App* sub : subcommands(app)) {
    const int distance = edit_distance(*word, sub->get_name());
    if (distance == 0) {
      const auto next = std::find_if(word + 1, args.end(), is_word);
      return next == args.end() ? Status() : check_nested(*sub, *next);
    }
    if (distance >= best_distance) continue;
    best_distance = distance;
    best = sub->get_name();
  }
  return invalid_argument(
      "unknown command '" + *word + "'" +
      (best.empty() ? "; `sgactor --help` lists them" : "; did you mean " + best + "?"));
}

int report(const Status& status) {
  const int code = exit_code(status);
  // A wrong command needs no source position; a failure inside does.
  const std::string text = code == kExitFailed ? status.to_string() : status.message();
  std::cout.flush();
  std::fprintf(stderr, "sgactor: %s\n", one_line(text).c_str());
  return code;
}

/// The command that was named, or the one behind it.
const CLI::App& innermost(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return *at;
}

/// "; did you mean --devices?", an option of `app`, or a key of the job file of that name.
std::string nearest_option_hint(const CLI::App& app, std::string_view name) {
  std::string best;
  int best_distance = 4;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& known : option->get_lnames()) {
      const bool begins = name.size() > 2 && known.starts_with(name);
      const int distance = begins ? 1 : edit_distance(name, known);
      if (distance >= std::min<int>(best_distance, static_cast<int>(known.size()) - 1)) continue;
      best_distance = distance;
      best = known;
    }
  }
  if (!best.empty()) return "; did you mean --" + best + "?";
  std::string key(name);
  std::replace(key.begin(), key.end(), '-', '_');
  std::string hint = nearest_key_hint(key);
  // A key, and its value if one was meant, are given as an option here.
  constexpr std::string_view kHead = "; did you mean ";
  constexpr std::string_view kValue = " = \"";
  if (hint.starts_with(kHead)) hint.insert(kHead.size(), "--");
  if (const size_t at = hint.find(kValue); at != std::string::npos) {
    hint.replace(at, kValue.size(), "=");
    std::erase(hint, '"');
  }
  return hint;
}

/// CLI11 lists all that is left over, the last word first; the first one is what is wrong.
Status unexpected_word(const CLI::App& app) {
  const CLI::App& at = innermost(app);
  const std::vector<std::string> left = app.remaining(/*recurse=*/true);
  if (left.empty()) return invalid_argument(at.get_name() + ": cannot be read");
  const std::string word = left.front().substr(0, left.front().find('='));
  if (is_word(word)) return invalid_argument(at.get_name() + ": unexpected argument " + word);
  const std::string name = word.substr(std::min(word.find_first_not_of('-'), word.size()));
  return invalid_argument(at.get_name() + ": unknown option " + word +
                          nearest_option_hint(at, name));
}

/// CLI11 says of no command which ones there are.
Status missing_word(const CLI::App& app, const std::string& what) {
  const CLI::App& at = innermost(app);
  std::string known;
  for (const CLI::App* sub : subcommands(at)) {
    known += (known.empty() ? "" : ", ") + sub->get_name();
  }
  return invalid_argument(at.get_name() + ": " +
                          (known.empty() ? what : "expected a subcommand, one of " + known));
}

Status parse_words(CLI::App& app, std::vector<std::string> args) {
  std::reverse(args.begin(), args.end());  // CLI11 takes them from the back
  try {
    app.parse(args);
  } catch (const CLI::CallForHelp&) {
    throw;
  } catch (const CLI::CallForAllHelp&) {
    throw;
  } catch (const CLI::ExtrasError&) {
    return unexpected_word(app);
  } catch (const CLI::RequiredError& error) {
    return missing_word(app, error.what());
  } catch (const CLI::ParseError& error) {
    return invalid_argument(error.what());
  }
  return {};
}

/// `code`, unless what was printed did not reach standard output.
int finish(int code) {
  std::cout.flush();
  if (code == kExitDone && (!std::cout || std::fflush(stdout) != 0 || std::ferror(stdout) != 0)) {
    std::fprintf(stderr, "sgactor: standard output: cannot write\n");
    return kExitFailed;
  }
  return code;
}

/// Third parties throw (CLI11, JSON, filesystem, memory); nothing may leave main() that way.
Result<int> run_action(const CommandLine& line) {
  try {
    return line.action();
  } catch (const std::bad_alloc&) {
    return make_status(Code::kOutOfMemory, "out of memory");
  } catch (const std::exception& error) {
    return internal_error(std::string("unexpected failure: ") + error.what());
  }
}

}  // namespace

int exit_code(const Status& status) {
  if (status.ok()) return kExitDone;
  switch (status.code()) {
    case Code::kInvalidArgument:
    case Code::kCorruption:
      return kExitUsage;
    case Code::kUnsupported:
      return status.scope() >= Scope::kDevice ? kExitNoDevice : kExitUsage;
    case Code::kOutOfMemory:
      return status.scope() >= Scope::kDevice ? kExitNoDevice : kExitFailed;
    default:
      return kExitFailed;
  }
}

log::Level log_level(std::string_view name) {
  if (name == "trace") return log::Level::kTrace;
  if (name == "debug") return log::Level::kDebug;
  if (name == "warn") return log::Level::kWarn;
  if (name == "error") return log::Level::kError;
  return name == "off" ? log::Level::kOff : log::Level::kInfo;
}

Result<std::vector<JobOverride>> split_overrides(std::vector<std::string>& args) {
  std::vector<JobOverride> overrides;
  std::vector<std::string> rest;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (!is_override(arg)) {
      rest.push_back(arg);
      continue;
    }
    const size_t equals = arg.find('=');
    if (equals != std::string::npos) {
      overrides.push_back({arg.substr(2, equals - 2), arg.substr(equals + 1)});
    } else if (i + 1 < args.size() && !args[i + 1].starts_with("--")) {
      overrides.push_back({arg.substr(2), args[++i]});
    } else {
      return invalid_argument(arg + ": expected a value, as in " + arg + "=VALUE");
    }
  }
  args = std::move(rest);
  return overrides;
}

std::string version_text(const kernels::BackendTable& backends) {
  std::string text = "sgactor " + std::string(kVersion) + "\nbackends:\n";
  for (const kernels::BackendEntry& entry : backends.entries()) {
    std::string what = entry.unavailable;
    if (entry.create) {
      auto backend = entry.create({});
      what = backend.ok() ? (*backend)->info().description : backend.status().message();
    }
    text += fmt::format("  {:<10} {}\n", entry.name + ":", what);
  }
  return text;
}

/// Only commands that read a job file take its keys.
static Status check_overrides(const CLI::App& app, const std::vector<JobOverride>& overrides) {
  if (overrides.empty()) return {};
  for (const CLI::App* sub : app.get_subcommands()) {
    const std::string& name = sub->get_name();
    if (name == "generate" || name == "ckpt" || name == "ctl" || name == "node" ||
        name == "worker" || name == "audit" || name == "top" || name == "topo") {
      return invalid_argument(name + " takes no keys of a job file, got --" + overrides[0].key);
    }
  }
  return {};
}

int run_program(const kernels::BackendTable& backends, const actors::StrategyTable& strategies,
                std::vector<std::string> args) {
  log::init({});
  CommandLine line;
  line.backends = &backends;
  line.strategies = &strategies;
  auto overrides = split_overrides(args);
  if (!overrides.ok()) return report(overrides.status());
  line.overrides = std::move(*overrides);

  CLI::App app("sgactor trains transformer models as a static dataflow graph that actors execute.",
               "sgactor");
  app.footer(
      "Keys of a job file are overridden by --section.key=value; `sgactor init` lists them.");
  bool version = false;
  app.add_flag("--version", version, "version, backends found, and why another is missing");
  add_init(app, line);
  add_train(app, line);
  add_generate(app, line);
  add_plan(app, line);
  add_ckpt(app, line);
  add_bench(app, line);
  add_chaos(app, line);
  add_ctl(app, line);
  add_audit(app, line);
  add_top(app, line);
  add_topo(app, line);
  add_simulate(app, line);
  add_node(app, line);
  add_worker(app, line);

  if (Status s = check_command(app, args); !s.ok()) return report(s);
  try {
    if (Status s = parse_words(app, args); !s.ok()) return report(s);
  } catch (const CLI::ParseError& help) {
    return finish(app.exit(help));  // --help: prints it and is 0
  }
  if (version) {
    std::cout << version_text(backends);
    return finish(kExitDone);
  }
  if (Status s = check_overrides(app, line.overrides); !s.ok()) return report(s);
  if (!line.action) {
    std::cerr << app.help();
    return kExitUsage;
  }
  const Result<int> code = run_action(line);
  if (!code.ok()) return report(code.status());
  return finish(*code);
}

}  // namespace sgactor::apps
