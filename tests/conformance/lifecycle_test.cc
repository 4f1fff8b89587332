// What every backend owes before a single op: description, memory and its counters, tensors in and
// out.
#include "tests/conformance/backend_test.h"
#include "tests/conformance/native.h"

#include <array>
#include <cstring>

// An impossible allocation must come back as a Status under AddressSanitizer too.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }

namespace sgactor::testing {
namespace {

class Presence : public ::testing::TestWithParam<std::string> {};

TEST_P(Presence, IsThereOrSaysWhyNot) {
  const kernels::BackendTable table = conformance_backends();
  for (const kernels::BackendEntry& entry : table.entries()) {
    if (entry.name != GetParam()) continue;
    if (!entry.create) {
      ASSERT_FALSE(entry.unavailable.empty());
      GTEST_SKIP() << entry.unavailable;
    }
    const Status status = create(GetParam(), 0).status();
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
}

SGA_INSTANTIATE_FOR(Presence, backend_names());

class Lifecycle : public BackendTest {};

TEST_P(Lifecycle, DescribesItself) {
  const kernels::DeviceInfo& info = backend().info();
  EXPECT_EQ(info.backend, GetParam());
  EXPECT_FALSE(info.device.empty());
  EXPECT_FALSE(info.description.empty());
  EXPECT_FALSE(info.fingerprint.empty());
  EXPECT_GE(info.num_threads, 1);
  Result<std::unique_ptr<kernels::Backend>> again = create(GetParam(), 0);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ((*again)->info().fingerprint, info.fingerprint);
}

TEST_P(Lifecycle, AllocationsAreCounted) {
  const kernels::AllocationStats before = backend().allocation_stats();
  {
    Result<std::unique_ptr<kernels::DeviceMemory>> a = backend().allocate(1000, "a");
    Result<std::unique_ptr<kernels::DeviceMemory>> b = backend().allocate(24, "b");
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ((*a)->bytes(), 1000);
    EXPECT_NE((*a)->data(), nullptr);
    EXPECT_NE((*a)->data(), (*b)->data());
    const kernels::AllocationStats during = backend().allocation_stats();
    EXPECT_EQ(during.num_allocations, before.num_allocations + 2);
    EXPECT_EQ(during.live_bytes, before.live_bytes + 1024);
    EXPECT_GE(during.peak_bytes, during.live_bytes);
  }
  const kernels::AllocationStats after = backend().allocation_stats();
  EXPECT_EQ(after.live_bytes, before.live_bytes);
  EXPECT_EQ(after.num_allocations, before.num_allocations + 2);
  EXPECT_GE(after.peak_bytes, before.live_bytes + 1024);
}

TEST_P(Lifecycle, ImpossibleAllocationsAreErrors) {
  const kernels::AllocationStats before = backend().allocation_stats();
  const Status huge = backend().allocate(int64_t{1} << 60, "huge").status();
  EXPECT_EQ(huge.code(), Code::kOutOfMemory) << huge.to_string();
  EXPECT_NE(huge.message().find("huge"), std::string::npos) << huge.message();
  EXPECT_EQ(backend().allocation_stats().live_bytes, before.live_bytes);
  EXPECT_TRUE(backend().allocate(0, "empty").ok());
}

TEST_P(Lifecycle, MemoryMayOutliveItsBackend) {
  Result<std::unique_ptr<kernels::Backend>> other = create(GetParam(), 1);
  ASSERT_TRUE(other.ok());
  Result<std::unique_ptr<kernels::DeviceMemory>> memory = (*other)->allocate(64, "a");
  ASSERT_TRUE(memory.ok());
  *other = nullptr;
  EXPECT_EQ((*memory)->bytes(), 64);
}

constexpr std::array kStored = {DType::kF64, DType::kF32, DType::kBF16, DType::kF16,
                                DType::kI64, DType::kI32, DType::kU8};

TEST_P(Lifecycle, TensorsComeBackBitForBit) {
  for (const DType dtype : kStored) {
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{7}, Shape{3, 5, 2}, Shape{0, 4}}) {
      const TensorType type{dtype, shape};
      SCOPED_TRACE(type.to_string());
      std::vector<double> numbers(static_cast<size_t>(type.num_elements()));
      for (size_t i = 0; i < numbers.size(); ++i)
        numbers[i] =
            dtype == DType::kU8 ? static_cast<double>(i + 1) : 0.75 - static_cast<double>(i);
      const std::vector<std::byte> native = to_native(type, numbers);
      Result<std::unique_ptr<kernels::DeviceMemory>> memory =
          backend().allocate(backend().storage_bytes(type), "tensor");
      ASSERT_TRUE(memory.ok());
      std::vector<std::byte> read(native.size());
      ASSERT_TRUE(backend().write_tensor((*memory)->data(), type, native).ok());
      ASSERT_TRUE(backend().read_tensor(read, type, (*memory)->data()).ok());
      if (keeps_numbers(GetParam())) {
        EXPECT_EQ(read, native);
      } else if (native.size() >= 8) {
        // What stands for a hash is written back as that hash.
        std::vector<std::byte> again(native.size());
        ASSERT_TRUE(backend().write_tensor((*memory)->data(), type, read).ok());
        ASSERT_TRUE(backend().read_tensor(again, type, (*memory)->data()).ok());
        EXPECT_EQ(again, read);
      }
    }
  }
}

TEST_P(Lifecycle, WrongSizesAreErrorsAndWriteNothing) {
  const TensorType type{DType::kF32, Shape{4}};
  Result<std::unique_ptr<kernels::DeviceMemory>> memory =
      backend().allocate(backend().storage_bytes(type), "tensor");
  ASSERT_TRUE(memory.ok());
  const std::vector<std::byte> native = to_native(type, std::vector<double>{1, 2, 3, 4});
  ASSERT_TRUE(backend().write_tensor((*memory)->data(), type, native).ok());
  std::vector<std::byte> before(native.size());
  ASSERT_TRUE(backend().read_tensor(before, type, (*memory)->data()).ok());
  const std::vector<std::byte> zeros(native.size() - 4);
  EXPECT_EQ(backend().write_tensor((*memory)->data(), type, zeros).code(), Code::kInvalidArgument);
  std::vector<std::byte> small(native.size() + 4, std::byte{1});
  const std::vector<std::byte> untouched = small;
  EXPECT_EQ(backend().read_tensor(small, type, (*memory)->data()).code(), Code::kInvalidArgument);
  EXPECT_EQ(small, untouched);
  std::vector<std::byte> after(native.size());
  ASSERT_TRUE(backend().read_tensor(after, type, (*memory)->data()).ok());
  EXPECT_EQ(after, before);
}

TEST_P(Lifecycle, AnEmptyBodyRuns) {
  graph::Graph graph;
  EXPECT_TRUE(run_on(backend(), graph, {}).status.ok());
}

SGA_INSTANTIATE_FOR(Lifecycle, present_backends());

}  // namespace
}  // namespace sgactor::testing
