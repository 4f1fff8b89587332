#include "apps/sgactor/run_directory.h"

#include "transport/storage/run_files.h"

#include <nlohmann/json.hpp>

#include <ctime>
#include <filesystem>
#include <fstream>

namespace sgactor::apps {
namespace {

namespace fs = std::filesystem;

/// The step of a line, or -1 if it is no JSON object with an integer step.
int64_t step_of(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return -1;
  const auto it = json.find("step");
  return it != json.end() && it->is_number_integer() ? it->get<int64_t>() : -1;
}

}  // namespace

std::string default_run_path(const std::string& name, int64_t unix_time) {
  const auto seconds = static_cast<std::time_t>(unix_time);
  std::tm local{};
  localtime_r(&seconds, &local);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &local);
  const std::string base = "runs/" + name + "-" + stamp;
  std::string path = base;
  std::error_code error;
  for (int i = 2; fs::exists(path, error); ++i) path = base + "-" + std::to_string(i);
  return path;
}

Status check_new_run(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return {};
  if (!fs::is_directory(status))
    return invalid_argument("--run-dir " + path + ": expected a directory, there is a file");
  if (fs::is_empty(path, error) && !error) return {};
  return invalid_argument("--run-dir " + path +
                          ": exists and is not empty; add --resume to go on with it, or name "
                          "another");
}

Status create_run(const RunDirectory& run) {
  for (const std::string& dir : {run.path, run.checkpoints(), run.path + "/trace"}) {
    std::error_code error;
    fs::create_directories(dir, error);
    if (error) return invalid_argument("--run-dir " + dir + ": cannot create: " + error.message());
  }
  return {};
}

Result<int64_t> truncate_steps(const std::string& file, int64_t last_step) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return int64_t{0};
  std::string kept;
  int64_t dropped = 0;
  int64_t number = 0;
  std::string bad;  // a line that is no record; fine only as the last one
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (!bad.empty()) return corruption(bad);
    const bool finished = !in.eof();  // a line that was cut has no newline
    const int64_t step = finished ? step_of(line) : -1;
    if (step < 0)
      bad = file + ":" + std::to_string(number) + ": expected a JSON object with a step";
    if (step < 0 || step > last_step) {
      ++dropped;
    } else {
      kept += line + "\n";
    }
  }
  in.close();
  if (dropped > 0) SGA_TRY(transport::write_file_atomic(file, kept));
  return dropped;
}

}  // namespace sgactor::apps
