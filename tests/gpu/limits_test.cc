// Where CUDA and cuDNN end: rows longer than a pitch, workspaces of long attention, no memory for a
// kernel. Letters: B batch, T time, H query heads, G key-value heads, K head dim.
#include "graph/base/philox.h"
#include "graph/base/units.h"
#include "graph/ir/builder.h"
#include "kernels/cuda/attention_ranges.h"
#include "tests/conformance/backend_test.h"
#include "tests/conformance/native.h"
#include "tests/conformance/op_cases.h"
#include "tests/conformance/tolerance.h"
#include "tests/gpu/cuda_fixture.h"

#include <cmath>
#include <numeric>

namespace sgactor::testing {
namespace {

using graph::OpKind;
using graph::Role;
using graph::ValueId;

constexpr DType kType = DType::kBF16;

class Limits : public CudaTest {
 protected:
  [[nodiscard]] bool has_cudnn() const {
    return backend_->info().fingerprint.find("no-cudnn") == std::string::npos;
  }

  ValueId input(const Shape& shape) {
    const PhiloxStream random{11, inputs_.size()};
    std::vector<double> numbers(static_cast<size_t>(shape.num_elements()));
    for (size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = nearest(kType, 2 * random.uniform(i) - 1);
    inputs_.push_back(std::move(numbers));
    return b_.input({kType, shape}, Role::kActivation, numbered("x", inputs_.size()));
  }
  void output(ValueId v) {
    b_.output(v, Role::kActivation, numbered("y", graph_.outputs().size()));
  }
  static graph::Attrs attention(int64_t K) {
    return attrs({{"scale", 1 / std::sqrt(static_cast<double>(K))}, {"causal", true}});
  }
  Result<std::unique_ptr<kernels::Executable>> compile(kernels::Backend& on) const {
    const Layout layout = make_layout(on, graph_, {});
    return on.compile({&graph_, layout.places, layout.workspace_bytes, "limits"});
  }

  graph::Graph graph_;
  graph::Builder b_{graph_};
  std::vector<std::vector<double>> inputs_;
};

/// Takes 16 GiB of the device and nothing of the host: rows are zeros but for what is asked for.
TEST_F(Limits, RowsLongerThanAPitch) {
  constexpr int64_t kRow = (int64_t{1} << 30) + 2048;  // of two bytes: 4 KiB above 2 GiB
  constexpr int64_t kPart = 64;
  constexpr int64_t kStart = kRow - 1000;
  const TensorType wide{kType, Shape{2, kRow}};
  const TensorType part{kType, Shape{2, kPart}};
  const ValueId x = b_.input(wide, Role::kActivation, "x");
  const ValueId tail = b_.input(part, Role::kActivation, "tail");
  output(b_.slice(x, 1, kStart, kPart));
  output(b_.slice(b_.concat({x, tail}, 1), 1, kRow, kPart));
  output(b_.slice(b_.pad(x, 1, kPart, 0), 1, kStart + kPart, kPart));
  ASSERT_TRUE(b_.status().ok()) << b_.status().to_string();

  const Layout layout = make_layout(*backend_, graph_, {});
  auto executable = backend_->compile({&graph_, layout.places, layout.workspace_bytes, "wide"});
  ASSERT_TRUE(executable.ok()) << executable.status().to_string();
  std::vector<std::unique_ptr<kernels::DeviceMemory>> memory;
  const auto allocate = [&](int64_t bytes) -> std::byte* {
    auto made = backend_->allocate(bytes, "limits");
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    if (!made.ok()) return nullptr;
    memory.push_back(std::move(made).value());
    return memory.back()->data();
  };
  std::vector<std::byte*> in = {allocate(wide.bytes()), allocate(part.bytes())};
  std::vector<std::byte*> out;
  for (int j = 0; j < 3; ++j) out.push_back(allocate(part.bytes()));
  std::byte* workspace = allocate(layout.workspace_bytes);
  std::byte* scratch = allocate((*executable)->scratch_bytes());
  if (HasFailure()) return;

  std::vector<double> marks(2 * kPart);
  std::iota(marks.begin(), marks.end(), 1.0);
  ASSERT_TRUE(backend_->write_tensor(in[1], part, to_native(part, marks)).ok());
  const TensorType row{kType, Shape{kPart}};
  for (int64_t r = 0; r < 2; ++r) {
    const auto numbers = std::span(marks).subspan(static_cast<size_t>(r * kPart), kPart);
    ASSERT_TRUE(backend_
                    ->write_tensor(in[0] + (r * kRow + kStart) * dtype_bytes(kType), row,
                                   to_native(row, numbers))
                    .ok());
  }
  auto stream = backend_->create_stream();
  ASSERT_TRUE(stream.ok()) << stream.status().to_string();
  RecordingSink sink;
  (*stream)->launch(**executable, {in, out, workspace, scratch}, 1, sink);
  const std::vector<Completion> done = sink.wait_for(1);
  ASSERT_EQ(done.size(), 1U);
  ASSERT_TRUE(done[0].status.ok()) << done[0].status.to_string();
  for (size_t j = 0; j < out.size(); ++j) {
    std::vector<std::byte> native(static_cast<size_t>(part.bytes()));
    ASSERT_TRUE(backend_->read_tensor(native, part, out[j]).ok());
    EXPECT_EQ(from_native(part, native), marks) << "output " << j;
  }
}

/// cuDNN's gradient of heads whose dP takes more than its workspace may, beside that of two halves,
/// each of which fits.
TEST_F(Limits, AttentionGradientInRangesOfHeads) {
  if (!has_cudnn()) GTEST_SKIP() << "no cuDNN";
  constexpr int64_t B = 1, T = 4096, H = 80, G = 20, K = 32, R = H / G;
  namespace cuda = kernels::cuda;
  ASSERT_EQ(cuda::gradient_range(B, H, G, T, K), (cuda::GradientRange{1, G / 2}));
  ASSERT_EQ(cuda::gradient_range(B, H / 2, G / 2, T, K), (cuda::GradientRange{1, G / 2}));
  const ValueId q = input(Shape{B, T, H, K});
  const ValueId k = input(Shape{B, T, G, K});
  const ValueId v = input(Shape{B, T, G, K});
  const ValueId d_o = input(Shape{B, T, H, K});
  const std::vector<ValueId> saved = b_.op(OpKind::kFlashAttention, {q, k, v}, attention(K));
  for (const ValueId y :
       b_.op(OpKind::kFlashAttentionGrad, {d_o, q, k, v, saved[0], saved[1]}, attention(K)))
    output(y);
  std::vector<std::vector<ValueId>> halves(3);
  for (int64_t g = 0; g < G; g += G / 2) {
    const auto heads = [&](ValueId x) { return b_.slice(x, 2, g * R, H / 2); };
    const auto groups = [&](ValueId x) { return b_.slice(x, 2, g, G / 2); };
    const std::vector<ValueId> grads = b_.op(OpKind::kFlashAttentionGrad,
                                             {heads(d_o), heads(q), groups(k), groups(v),
                                              heads(saved[0]), b_.slice(saved[1], 1, g * R, H / 2)},
                                             attention(K));
    for (size_t j = 0; j < 3; ++j) halves[j].push_back(grads[j]);
  }
  for (const std::vector<ValueId>& both : halves) output(b_.concat(both, 2));
  ASSERT_TRUE(b_.status().ok()) << b_.status().to_string();

  const auto executable = compile(*backend_);
  ASSERT_TRUE(executable.ok()) << executable.status().to_string();
  EXPECT_LE((*executable)->scratch_bytes(), cuda::kUsualGradientWorkspace);
  const RunResult got = run_on(*backend_, graph_, inputs_);
  ASSERT_TRUE(got.status.ok()) << got.status.to_string();
  for (size_t j = 0; j < 3; ++j) {
    const TensorType& type = graph_.type(graph_.outputs()[j].value);
    const auto problem = disagreement(from_native(type, got.outputs[j]),
                                      from_native(type, got.outputs[3 + j]), tolerance_of(kType));
    EXPECT_FALSE(problem) << "gradient " << j << ": " << *problem;
  }
}

/// One head's dP alone is above the bound: plain kernels, which keep nothing of T x T.
TEST_F(Limits, AttentionGradientOfTheLongestSequences) {
  constexpr int64_t T = 65536, K = 32;
  const Shape shape{1, T, 1, K};
  std::vector<ValueId> x;
  for (int i = 0; i < 5; ++i)
    x.push_back(b_.input({kType, shape}, Role::kActivation, numbered("x", static_cast<size_t>(i))));
  x.push_back(b_.input({DType::kF32, Shape{1, 1, T}}, Role::kActivation, "lse"));
  for (const ValueId y : b_.op(OpKind::kFlashAttentionGrad, x, attention(K))) output(y);
  ASSERT_TRUE(b_.status().ok()) << b_.status().to_string();
  const auto executable = compile(*backend_);
  ASSERT_TRUE(executable.ok()) << executable.status().to_string();
  EXPECT_LE((*executable)->scratch_bytes(), kMiB);
}

/// A kernel for which there is no memory is an error, never a plain kernel with other bits.
TEST_F(Limits, AttentionWithoutMemoryIsNoOtherKernel) {
  if (!has_cudnn()) GTEST_SKIP() << "no cuDNN";
  constexpr int64_t K = 96;
  const Shape shape{2, 192, 4, K};
  const ValueId q = input(shape);
  const ValueId k = input(shape);
  const ValueId v = input(shape);
  const ValueId d_o = input(shape);
  const std::vector<ValueId> saved = b_.op(OpKind::kFlashAttention, {q, k, v}, attention(K));
  output(saved[0]);
  for (const ValueId y :
       b_.op(OpKind::kFlashAttentionGrad, {d_o, q, k, v, saved[0], saved[1]}, attention(K)))
    output(y);
  const RunResult want = run_on(*backend_, graph_, inputs_);
  ASSERT_TRUE(want.status.ok()) << want.status.to_string();

  std::unique_ptr<kernels::Backend> fresh;  // with no kernels yet
  ASSERT_NO_FATAL_FAILURE(open_cuda(fresh));
  {
    const auto all = hoard(4096);
    const auto made = compile(*fresh);
    if (!made.ok()) {
      const Code code = made.status().code();
      EXPECT_TRUE(code == Code::kOutOfMemory || code == Code::kDeviceFault)
          << made.status().to_string();
    }
  }
  const RunResult got = run_on(*fresh, graph_, inputs_);
  ASSERT_TRUE(got.status.ok()) << got.status.to_string();
  EXPECT_EQ(got.outputs, want.outputs);
}

}  // namespace
}  // namespace sgactor::testing
