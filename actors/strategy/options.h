#pragma once
#include "graph/base/status.h"

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::actors {

/// What a job says to its strategy: strategy.options = ["interval=10", "momentum=0.9"]. A value.
class StrategyOptions {
 public:
  /// Errors: kInvalidArgument for what is no "name=value", or a name given twice.
  static Result<StrategyOptions> parse(std::span<const std::string> texts);

  /// `fallback` if it is not given. Errors: kInvalidArgument if the value is no number, or not
  /// within [low, high]; the message names option, limits and value.
  [[nodiscard]] Result<double> number(std::string_view name, double fallback, double low,
                                      double high) const;
  [[nodiscard]] Result<int64_t> integer(std::string_view name, int64_t fallback, int64_t low,
                                        int64_t high) const;
  [[nodiscard]] std::string text(std::string_view name, std::string_view fallback) const;
  /// Errors: kInvalidArgument naming the first option that is none of `known`, and those.
  [[nodiscard]] Status check_known(const std::vector<std::string_view>& known) const;

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace sgactor::actors
