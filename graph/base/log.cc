#include "graph/base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace sgactor::log {
namespace {

std::atomic<int64_t> warnings{0};

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kTrace:
      return spdlog::level::trace;
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarn:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
    case Level::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

}  // namespace

void init(const Options& options) {
  std::vector<spdlog::sink_ptr> sinks{std::make_shared<spdlog::sinks::stderr_color_sink_mt>()};
  if (!options.file.empty())
    sinks.push_back(std::make_shared<spdlog::sinks::basic_file_sink_mt>(std::string(options.file)));
  auto logger = std::make_shared<spdlog::logger>("sgactor", sinks.begin(), sinks.end());
  logger->set_pattern("%H:%M:%S.%e %^%l%$ %v");
  logger->set_level(to_spdlog(options.level));
  logger->flush_on(spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
}

void write(Level level, std::string_view line) {
  if (level >= Level::kWarn && level != Level::kOff)
    warnings.fetch_add(1, std::memory_order_relaxed);
  spdlog::log(to_spdlog(level), "{}", line);
}

int64_t num_warnings() { return warnings.load(std::memory_order_relaxed); }
void reset_warnings() { warnings.store(0, std::memory_order_relaxed); }

}  // namespace sgactor::log
