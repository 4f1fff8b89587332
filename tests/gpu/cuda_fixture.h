#pragma once
#include "kernels/backend/backend.h"
#include "tests/conformance/harness.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace sgactor::testing {

/// Opens the GPU as the conformance suite does; skips the test, with the reason, where there is
/// none. Call by ASSERT_NO_FATAL_FAILURE.
inline void open_cuda(std::unique_ptr<kernels::Backend>& backend) {
  const kernels::BackendTable table = conformance_backends();
  for (const kernels::BackendEntry& entry : table.entries()) {
    if (entry.name != "cuda") continue;
    if (!entry.create) GTEST_SKIP() << entry.unavailable;
    auto made = entry.create({});
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    backend = std::move(made).value();
  }
  ASSERT_NE(backend, nullptr) << "no row cuda in the table";
}

/// A test on a GPU.
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override { open_cuda(backend_); }

  /// All memory of the device but less than `rest`.
  std::vector<std::unique_ptr<kernels::DeviceMemory>> hoard(int64_t rest) {
    std::vector<std::unique_ptr<kernels::DeviceMemory>> all;
    for (int64_t size = int64_t{1} << 40; size >= rest; size /= 2) {
      while (true) {
        auto piece = backend_->allocate(size, "hoard");
        if (!piece.ok()) break;
        all.push_back(std::move(piece).value());
      }
    }
    return all;
  }

  std::unique_ptr<kernels::Backend> backend_;
};

}  // namespace sgactor::testing
