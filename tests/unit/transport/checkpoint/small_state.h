#pragma once
#include "graph/base/hash.h"
#include "transport/storage/checkpoint.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::transport {

/// A few tensors whose bytes are a function of the step. "frozen" is the same in every step; "zero"
/// has chunks that are equal to each other; "empty" has no element.
struct SmallState {
  explicit SmallState(int64_t step) : step(step) {
    add("embed.weight", {DType::kF32, {10, 7}}, "embed", step);
    add("layer.0/w", {DType::kBF16, {33}}, "layer.0", step);
    add("frozen", {DType::kF32, {50}}, "layer.0", -1);
    add("m/embed.weight", {DType::kF64, {3}}, "embed", step);
    add("zero", {DType::kI32, {64}}, "head", 0);
    add("scalar", {DType::kF32, {}}, "head", step);
    add("empty", {DType::kF32, {0, 4}}, "head", step);
  }
  void add(const std::string& name, const TensorType& type, const std::string& segment,
           int64_t salt) {
    std::vector<std::byte> bytes(static_cast<size_t>(type.bytes()));
    for (size_t i = 0; salt != 0 && i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(mix64(static_cast<uint64_t>(salt), i * 64 + names.size()));
    data.push_back(std::move(bytes));
    names.push_back(name);
    types.push_back(type);
    segments.push_back(segment);
  }
  [[nodiscard]] std::vector<NamedTensor> tensors() const {
    std::vector<NamedTensor> out;
    for (size_t i = 0; i < names.size(); ++i) out.push_back({names[i], types[i], data[i]});
    return out;
  }
  [[nodiscard]] CheckpointInfo info() const {
    CheckpointInfo info;
    info.step = step;
    info.schema_hash = 0xFEDCBA9876543210;
    info.mesh = "pp=1 dp=1 tp=1";
    info.run_state = "RUNNING";
    info.data_seed = ~0ULL;
    info.data_position = step;
    info.model_config = "{\"hidden_size\": 7}";
    info.job = "[model]\n";
    info.graph = std::string("graph\0with nul", 14);
    return info;
  }
  Result<WriteStats> write(const std::string& root, std::shared_ptr<FileSystem> files,
                           bool check_reused = true) const {
    WriteOptions options;
    options.chunk_bytes = 64;
    options.check_reused = check_reused;
    return write_checkpoint(root, info(), tensors(), segments, options, std::move(files));
  }
  /// Fails the test unless `checkpoint` holds exactly this state.
  void expect_in(const Checkpoint& checkpoint) const {
    EXPECT_EQ(checkpoint.info().step, step);
    ASSERT_EQ(checkpoint.info().tensors.size(), names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      std::vector<std::byte> loaded(data[i].size());
      const Status status = checkpoint.load(names[i], types[i], loaded);
      EXPECT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(loaded, data[i]) << names[i];
      EXPECT_EQ(checkpoint.info().tensors[i].segment, segments[i]);
    }
  }

  int64_t step;
  std::vector<std::string> names;
  std::vector<TensorType> types;
  std::vector<std::string> segments;
  std::vector<std::vector<std::byte>> data;
};

}  // namespace sgactor::transport
