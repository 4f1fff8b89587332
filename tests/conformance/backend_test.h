#pragma once
#include "kernels/reference/reference_backend.h"
#include "tests/conformance/harness.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace sgactor::testing {

/// A backend of the table, or an error; kUnsupported with the table's reason if it is absent.
inline Result<std::unique_ptr<kernels::Backend>> create(const std::string& name,
                                                        int32_t num_threads) {
  return conformance_backends().create(name, {.num_threads = num_threads});
}

/// Rows of the table that this build and machine have. One that is absent is reported once, with
/// its reason (Presence in lifecycle_test.cc).
inline std::vector<std::string> present_backends() {
  std::vector<std::string> names;
  const kernels::BackendTable table = conformance_backends();
  for (const kernels::BackendEntry& entry : table.entries()) {
    if (entry.create) names.push_back(entry.name);
  }
  return names;
}

/// Those whose tensors are numbers.
inline std::vector<std::string> number_backends() {
  std::vector<std::string> names = present_backends();
  std::erase_if(names, [](const std::string& name) { return !keeps_numbers(name); });
  return names;
}

/// Fixture with one backend; one that is present and cannot be created fails.
class BackendTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<kernels::Backend>> made = create(GetParam(), 0);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    backend_ = std::move(made).value();
  }
  [[nodiscard]] kernels::Backend& backend() { return *backend_; }

 private:
  std::unique_ptr<kernels::Backend> backend_;
};

#define SGA_INSTANTIATE_FOR(fixture, names)                               \
  INSTANTIATE_TEST_SUITE_P(Backends, fixture, ::testing::ValuesIn(names), \
                           [](const auto& info) { return info.param; })

}  // namespace sgactor::testing
