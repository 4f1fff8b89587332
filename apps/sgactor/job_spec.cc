#include "apps/sgactor/job_spec.h"

#include "apps/sgactor/job_keys.h"
#include "apps/sgactor/printable.h"
#include "graph/base/units.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace sgactor::apps {
namespace {

namespace fs = std::filesystem;

std::string place(const std::string& file, const toml::source_region& source) {
  return file + ":" + std::to_string(source.begin.line);
}

std::string type_text(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::string:
      return "the string \"" + std::string(*node.value<std::string_view>()) + "\"";
    case toml::node_type::integer:
      return "the integer " + std::to_string(*node.value<int64_t>());
    case toml::node_type::floating_point:
      return "the number " + fmt::format("{}", *node.value<double>());
    case toml::node_type::boolean:
      return *node.value<bool>() ? "true" : "false";
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "a list";
    default:
      return "a date or time";
  }
}

/// Stores `node` in the key's field if the types agree. An integer is a number too.
bool store(const toml::node& node, const JobKey& key, JobSpec& job) {
  const KeyField field = key.field(job);
  if (auto* const* text = std::get_if<std::string*>(&field)) {
    if (node.is_boolean() && !key.limits.choices.empty()) {  // true, false or a word
      return set_from_text(key, job, *node.value<bool>() ? "true" : "false").ok();
    }
    if (!node.is_string()) return false;
    **text = *node.value<std::string>();
  } else if (auto* const* integer = std::get_if<int64_t*>(&field)) {
    const bool is_auto = key.limits.auto_ok && node.value<std::string_view>() == "auto";
    if (!is_auto && !node.is_integer()) return false;
    **integer = is_auto ? kAutoInteger : *node.value<int64_t>();
  } else if (auto* const* number = std::get_if<double*>(&field)) {
    if (!node.is_number()) return false;
    **number = *node.value<double>();
  } else if (auto* const* flag = std::get_if<bool*>(&field)) {
    if (!node.is_boolean()) return false;
    **flag = *node.value<bool>();
  } else if (auto* const* list = std::get_if<std::vector<std::string>*>(&field)) {
    const toml::array* array = node.as_array();
    if (array == nullptr) return false;
    (*list)->clear();
    for (const toml::node& element : *array) {
      if (!element.is_string()) return false;
      (*list)->push_back(*element.value<std::string>());
    }
  }
  return true;
}

std::string section_hint(std::string_view name) {
  for (const JobSection& section : job_sections()) {
    if (edit_distance(name, section.name) <= 3)
      return "; did you mean [" + std::string(section.name) + "]?";
  }
  return "";
}

Status read_section(const std::string& file, std::string_view section, const toml::table& table,
                    JobSpec& job) {
  for (const auto& [name, node] : table) {
    const std::string full = std::string(section) + "." + std::string(name);
    const std::string where = place(file, node.source());
    const JobKey* key = find_job_key(full);
    if (key == nullptr)
      return invalid_argument(where + ": " + full + ": unknown key" + nearest_key_hint(full));
    if (!store(node, *key, job)) {
      return invalid_argument(where + ": " + full + ": expected " + expectation(*key) + ", got " +
                              type_text(node));
    }
    job.places[full] = where;
    if (Status s = check_limits(*key, job); !s.ok()) return s.with_context(where + ": " + full);
  }
  return {};
}

Status read_tables(const std::string& file, const toml::table& root, JobSpec& job) {
  for (const auto& [name, node] : root) {
    const std::string where = place(file, node.source());
    const toml::table* table = node.as_table();
    const bool known = std::any_of(job_sections().begin(), job_sections().end(),
                                   [&](const JobSection& s) { return s.name == name.str(); });
    if (known && table != nullptr) {
      SGA_TRY(read_section(file, name.str(), *table, job));
    } else if (table != nullptr) {
      return invalid_argument(where + ": [" + std::string(name) + "]: unknown section" +
                              section_hint(name.str()));
    } else if (known) {
      return invalid_argument(where + ": " + std::string(name) + ": expected a section, got " +
                              type_text(node));
    } else {
      return invalid_argument(where + ": " + std::string(name) +
                              ": a key must stand below its [section]" +
                              nearest_key_hint(name.str()));
    }
  }
  return {};
}

Status parse_file_text(std::string_view text, const std::string& file, JobSpec& job) {
  try {
    const toml::table root = toml::parse(text, file);
    return read_tables(file, root, job);
  } catch (const toml::parse_error& error) {
    return invalid_argument(place(file, error.source()) +
                            ": not TOML: " + one_line(error.description()));
  }
}

Status apply_override(const JobOverride& o, JobSpec& job) {
  const std::string where = "--" + o.key + "=" + o.value;
  const JobKey* key = find_job_key(o.key);
  if (key == nullptr)
    return invalid_argument(where + ": " + o.key + ": unknown key" + nearest_key_hint(o.key));
  if (Status s = set_from_text(*key, job, o.value); !s.ok())
    return s.with_context(where + ": " + o.key);
  job.places[o.key] = where;
  return {};
}

/// The size that "auto" begins with: as given, else the largest up to 4 that divides the batch.
void resolve_micro_batch(JobSpec& job) {
  JobSpec::Training& t = job.training;
  if (t.micro_batch_size != kAutoInteger) return;
  t.auto_micro_batch = true;
  t.micro_batch_size = t.micro_batch_start;
  constexpr int64_t kSmall = 4;
  for (int64_t size = kSmall; t.micro_batch_size == 0; --size) {
    if (t.global_batch_size % (size * job.logical_ranks()) == 0 || size == 1)
      t.micro_batch_size = size;
  }
}

/// `relative` beside the job file or, if only there, below the current directory. What is nowhere
/// is looked for where its writer looks: beside the file, or where the command was typed.
std::string find_path(const JobSpec& job, const fs::path& job_dir, const std::string& relative,
                      const std::string& key) {
  std::error_code error;
  // A Megatron path is a prefix: its .idx is what exists.
  const auto is_there = [&](const fs::path& p) {
    return fs::exists(p, error) || fs::exists(p.string() + ".idx", error);
  };
  const fs::path beside = job_dir / relative;
  const auto place = job.places.find(key);
  const bool typed = place != job.places.end() && place->second.starts_with("--");
  // The run makes this one.
  const bool written = key == "profile.record";
  const bool here = is_there(beside) || (!is_there(relative) && !typed && !written);
  const fs::path chosen = here ? beside : fs::path(relative);
  const fs::path absolute = fs::absolute(chosen, error);
  return (error ? chosen : absolute).lexically_normal().string();
}

void resolve_libraries(const fs::path& job_dir, JobSpec& job) {
  for (std::string& library : job.plugins.libraries) {
    if (library.empty() || fs::path(library).is_absolute()) continue;
    library = find_path(job, job_dir, library, "plugins.libraries");
  }
}

void resolve_paths(const fs::path& job_dir, JobSpec& job) {
  for (const JobKey& key : job_keys()) {
    if (!key.limits.is_path) continue;
    std::string& value = *std::get<std::string*>(key.field(job));
    const bool is_name = key.full_name() == "data.tokenizer" && value == "bytes";
    if (value.empty() || is_name || fs::path(value).is_absolute()) continue;
    value = find_path(job, job_dir, value, key.full_name());
  }
}

}  // namespace

std::string JobSpec::at(std::string_view key) const {
  const auto it = places.find(std::string(key));
  const std::string where = it != places.end() ? it->second : file.empty() ? "job" : file;
  return where + ": " + std::string(key);
}

Result<JobSpec> parse_job(std::string_view toml, const std::string& file,
                          const std::vector<JobOverride>& overrides) {
  JobSpec job;
  job.file = file;
  job.name = fs::path(file).stem().string();
  SGA_TRY(parse_file_text(toml, file, job));
  for (const JobOverride& o : overrides) SGA_TRY(apply_override(o, job));
  resolve_micro_batch(job);
  SGA_TRY(check_combinations(job));
  resolve_paths(fs::path(file).parent_path(), job);
  resolve_libraries(fs::path(file).parent_path(), job);
  return job;
}

Status check_text_file(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return {};
  if (!fs::is_regular_file(status)) return invalid_argument(path + ": expected a regular file");
  const uintmax_t size = fs::file_size(path, error);
  if (!error && size > kMaxTextFileBytes) {
    return invalid_argument(path + ": is " + std::to_string(size) +
                            " bytes long; expected at most " + std::to_string(kMaxTextFileBytes));
  }
  return {};
}

Result<JobSpec> load_job(const std::string& path, const std::vector<JobOverride>& overrides) {
  std::error_code error;
  if (fs::is_directory(path, error))
    return invalid_argument(path + ": expected a job file, got a directory");
  SGA_TRY(check_text_file(path));
  std::ifstream in(path, std::ios::binary);
  if (!in) return invalid_argument(path + ": cannot read the job file: " + std::strerror(errno));
  std::ostringstream text;
  text << in.rdbuf();
  return parse_job(text.str(), path, overrides);
}

std::string write_job(const JobSpec& job, bool comments) {
  std::string out;
  const JobSpec defaults;
  for (const JobSection& section : job_sections()) {
    if (!out.empty()) out += "\n";
    out += fmt::format("[{}]", section.name);
    out += comments ? fmt::format("  # {}\n", section.help) : "\n";
    for (const JobKey& key : job_keys()) {
      if (key.section != section.name) continue;
      if (comments) {
        out += fmt::format("# {}\n#   {}; default {}\n", key.help, expectation(key),
                           value_as_toml(key, defaults));
      }
      out += fmt::format("{} = {}\n", key.name, value_as_toml(key, job));
    }
  }
  return out;
}

}  // namespace sgactor::apps
