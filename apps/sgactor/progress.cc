#include "apps/sgactor/progress.h"

#include "graph/base/units.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace sgactor::apps {
namespace {

constexpr int kBarWidth = 20;

std::string bar(int64_t step, int64_t last) {
  const auto filled = static_cast<int>(last > 0 ? kBarWidth * step / last : kBarWidth);
  std::string text(static_cast<size_t>(std::clamp(filled, 0, kBarWidth)), '#');
  text.resize(kBarWidth, '.');
  return "[" + text + "]";
}

std::string painted(std::string text, std::string_view code, bool colour) {
  return colour ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : text;
}

}  // namespace

std::string progress_line(const ProgressFacts& f, bool colour) {
  const std::string total = std::to_string(f.last_step);
  const std::string left = f.step >= f.last_step ? "done" : format_seconds(f.seconds_left);
  return fmt::format(
      "step {:>{}}/{}  loss {}  norm {:>8.3f}  lr {:.2e}  {:>9} tok/s  {:>7.3f} TFLOP/s  mem {:>10}"
      "  left {:>8}  {}",
      f.step, total.size(), total, painted(fmt::format("{:>8.4f}", f.loss), "1", colour),
      f.grad_norm, f.lr, format_count(f.tokens_per_second), f.tflops, format_bytes(f.memory_bytes),
      left, painted(bar(f.step, f.last_step), "32", colour));
}

double TimeLeft::step_done(double now, int64_t steps_left) {
  if (last_ >= 0) {
    // A plain mean at first, then an exponential one: the first steps are no outliers for long.
    ++num_;
    const double weight = std::max(0.05, 1.0 / static_cast<double>(num_));
    mean_ += weight * (now - last_ - mean_);
  }
  last_ = now;
  return mean_ * static_cast<double>(steps_left);
}

bool wants_colour(int fd) {
  if (isatty(fd) == 0 || std::getenv("NO_COLOR") != nullptr) return false;
  const char* term = std::getenv("TERM");
  return term != nullptr && std::string_view(term) != "dumb";
}

}  // namespace sgactor::apps
