#include "kernels/cuda/matmul.h"

#include "graph/base/log.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/matmul_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <vector>

namespace sgactor::kernels::cuda {
namespace {

/// From here on products get the large workspace, and are worth measuring.
constexpr double kLargeFlops = 2e9;
constexpr int64_t kLargeWorkspace = int64_t{64} << 20;
constexpr int64_t kSmallWorkspace = int64_t{4} << 20;
constexpr int kMostCandidates = 24;
// Buffers of plans are aligned so; see plan.h.
constexpr uint32_t kAlignment = 64;

Status blas_status(cublasStatus_t s, const char* what) {
  if (s == CUBLAS_STATUS_SUCCESS) return {};
  const std::string text = fmt::format("cuda: {}: {}", what, cublasLtGetStatusString(s));
  if (s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE)
    return unsupported(text);
  return make_status(Code::kDeviceFault, text, Scope::kRank);
}

Result<cudaDataType_t> data_type(DType t) {
  switch (t) {
    case DType::kF64:
      return CUDA_R_64F;
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kF8E4M3:
      return CUDA_R_8F_E4M3;
    case DType::kF8E5M2:
      return CUDA_R_8F_E5M2;
    default:
      return unsupported(fmt::format("no product of {}", dtype_name(t)));
  }
}

Status make_layout(cublasLtMatrixLayout_t* out, cudaDataType_t type, int64_t rows, int64_t columns,
                   int64_t stride, int64_t batch, int64_t given_step = 0) {
  SGA_TRY(blas_status(cublasLtMatrixLayoutCreate(out, type, static_cast<uint64_t>(rows),
                                                 static_cast<uint64_t>(columns), stride),
                      "matrix layout"));
  if (batch == 1) return {};
  const auto count = static_cast<int32_t>(batch);
  const int64_t step = given_step > 0 ? given_step : stride * columns;
  SGA_TRY(blas_status(cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                       &count, sizeof count),
                      "batch count"));
  return blas_status(cublasLtMatrixLayoutSetAttribute(
                         *out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step),
                     "batch stride");
}

/// The choice where there is no memory to measure: the library's first with a small workspace, else
/// the one with the smallest.
int modest_place(std::span<const cublasLtMatmulHeuristicResult_t> candidates) {
  const auto needs = [](const cublasLtMatmulHeuristicResult_t& c) {
    return c.state == CUBLAS_STATUS_SUCCESS ? c.workspaceSize : std::numeric_limits<size_t>::max();
  };
  auto chosen = std::find_if(candidates.begin(), candidates.end(), [&](const auto& c) {
    return needs(c) <= static_cast<size_t>(kSmallWorkspace);
  });
  if (chosen == candidates.end()) chosen = std::ranges::min_element(candidates, {}, needs);
  return static_cast<int>(chosen - candidates.begin());
}

/// Times one candidate; infinite if it fails.
class Stopwatch {
 public:
  Stopwatch() {
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  template <class F>
  float ms(int repeats, F&& run) {
    cudaEventRecord(begin_, nullptr);
    for (int i = 0; i < repeats; ++i) {
      if (!run()) return std::numeric_limits<float>::infinity();
    }
    cudaEventRecord(end_, nullptr);
    float elapsed = std::numeric_limits<float>::infinity();
    if (cudaEventSynchronize(end_) != cudaSuccess) return elapsed;
    cudaEventElapsedTime(&elapsed, begin_, end_);
    return elapsed;
  }

 private:
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace

std::string MatmulShape::name() const {
  std::string text = fmt::format("{} {} {}{} {}x{}x{}x{}", dtype_name(operands), dtype_name(result),
                                 trans_a ? 't' : 'n', trans_b ? 't' : 'n', batch, m, n, k);
  if (is_scaled()) text = fmt::format("{} x {}", dtype_name(operands_b), text);
  if (accumulate) text += " acc";
  if (adds) text += " add";
  if (fast_sums) text += " fast";
  if (stride_a + stride_b + stride_y > 0)
    text += fmt::format(" strides {} {} {}", stride_a, stride_b, stride_y);
  if (step_a + step_b > 0) text += fmt::format(" steps {} {}", step_a, step_b);
  return text;
}

Matmul::~Matmul() {
  if (left_ != nullptr) cublasLtMatrixLayoutDestroy(left_);
  if (right_ != nullptr) cublasLtMatrixLayoutDestroy(right_);
  if (out_ != nullptr) cublasLtMatrixLayoutDestroy(out_);
  if (operation_ != nullptr) cublasLtMatmulDescDestroy(operation_);
}

Result<std::shared_ptr<const Matmul>> Matmul::create(CudaDevice& device, const MatmulShape& shape) {
  std::shared_ptr<Matmul> product(new Matmul());
  product->blas_ = device.blas();
  SGA_TRY(product->describe(shape).with_context(shape.name()));
  SGA_TRY(product->choose(device, shape).with_context(shape.name()));
  return std::shared_ptr<const Matmul>(std::move(product));
}

Status Matmul::describe(const MatmulShape& s) {
  in_double_ = s.result == DType::kF64;
  adds_ = s.accumulate || s.adds;
  SGA_ASSIGN(const cudaDataType_t in, data_type(s.operands));
  SGA_ASSIGN(const cudaDataType_t result, data_type(s.result));
  // Never TF32: f32 means f32 here.
  SGA_TRY(blas_status(
      cublasLtMatmulDescCreate(&operation_, in_double_ ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                               in_double_ ? CUDA_R_64F : CUDA_R_32F),
      "matmul description"));
  // A row-major matrix is its transpose in column-major order: y^T = op(b)^T op(a)^T.
  const cublasOperation_t left = s.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t right = s.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  SGA_TRY(blas_status(
      cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &left, sizeof left),
      "transposition"));
  SGA_TRY(blas_status(
      cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSB, &right, sizeof right),
      "transposition"));
  if (s.fast_sums) {
    const int8_t fast = 1;
    SGA_TRY(blas_status(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_FAST_ACCUM,
                                                       &fast, sizeof fast),
                        "fast sums"));
  }
  const auto dense = [](int64_t given, int64_t columns) { return given > 0 ? given : columns; };
  const int64_t b_columns = s.trans_b ? s.k : s.n;
  const int64_t a_columns = s.trans_a ? s.m : s.k;
  SGA_ASSIGN(const cudaDataType_t in_b, data_type(s.is_scaled() ? s.operands_b : s.operands));
  SGA_TRY(make_layout(&left_, in_b, b_columns, s.trans_b ? s.n : s.k, dense(s.stride_b, b_columns),
                      s.batch, s.step_b));
  SGA_TRY(make_layout(&right_, in, a_columns, s.trans_a ? s.k : s.m, dense(s.stride_a, a_columns),
                      s.batch, s.step_a));
  return make_layout(&out_, result, s.n, s.m, dense(s.stride_y, s.n), s.batch);
}

Status Matmul::choose(CudaDevice& device, const MatmulShape& s) {
  const bool large = s.flops() >= kLargeFlops;
  const auto most = static_cast<uint64_t>(large ? kLargeWorkspace : kSmallWorkspace);
  // In-place reductions of split sums are left out: their order is not fixed.
  const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  cublasLtMatmulPreference_t preference = nullptr;
  SGA_TRY(blas_status(cublasLtMatmulPreferenceCreate(&preference), "preference"));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    return blas_status(
        cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
        "preference");
  };
  Status status = set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, most);
  if (status.ok()) status = set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    if (status.ok()) status = set(attribute, kAlignment);
  }
  std::array<cublasLtMatmulHeuristicResult_t, kMostCandidates> found{};
  int count = 0;
  if (status.ok()) {
    status = blas_status(
        cublasLtMatmulAlgoGetHeuristic(blas_, operation_, left_, right_, out_, out_, preference,
                                       kMostCandidates, found.data(), &count),
        "choice of an algorithm");
  }
  cublasLtMatmulPreferenceDestroy(preference);
  SGA_TRY(status);
  if (count == 0) return unsupported("cuda: cublasLt has no algorithm");
  int place = device.matmuls().find(s.name()).value_or(-1);
  if (place < 0 && large && device.matmuls().measures()) {
    const std::lock_guard alone(device.measuring());
    place = device.matmuls().find(s.name()).value_or(-1);
    if (place < 0) {
      const std::span candidates(found.data(), static_cast<size_t>(count));
      const Result<int> measured = measure(device, s, candidates.data(), count);
      if (!measured.ok() && measured.status().code() != Code::kOutOfMemory)
        return measured.status();
      if (!measured.ok())
        log::warn("{} is not measured, its row in {} can be removed later: {}", s.name(),
                  device.matmuls().file(), measured.status().message());
      SGA_ASSIGN(place, device.matmuls().add(s.name(),
                                             measured.ok() ? *measured : modest_place(candidates)));
    }
  }
  const auto& chosen = found[static_cast<size_t>(place >= 0 && place < count ? place : 0)];
  algorithm_ = chosen.algo;
  workspace_bytes_ = static_cast<int64_t>(chosen.workspaceSize);
  return {};
}

Result<int> Matmul::measure(CudaDevice& device, const MatmulShape& s,
                            const cublasLtMatmulHeuristicResult_t* candidates, int count) const {
  const int64_t in = dtype_bytes(s.operands) * s.batch;
  const auto strided = [](int64_t given, int64_t rows, int64_t columns) {
    return rows * (given > 0 ? given : columns);
  };
  const int64_t a_bytes =
      in * (s.trans_a ? strided(s.stride_a, s.k, s.m) : strided(s.stride_a, s.m, s.k));
  const int64_t b_bytes =
      in * (s.trans_b ? strided(s.stride_b, s.n, s.k) : strided(s.stride_b, s.k, s.n));
  const int64_t y_bytes = dtype_bytes(s.result) * s.batch * strided(s.stride_y, s.m, s.n);
  SGA_ASSIGN(auto a, device.allocate(a_bytes, "matmul measurement"));
  SGA_ASSIGN(auto b, device.allocate(b_bytes, "matmul measurement"));
  SGA_ASSIGN(auto y, device.allocate(y_bytes, "matmul measurement"));
  SGA_ASSIGN(auto workspace, device.allocate(kLargeWorkspace, "matmul measurement"));
  // Bits that are small numbers of mixed sign in every float format; zeros would run faster.
  std::vector<uint16_t> noise(size_t{1} << 20);
  uint32_t state = 12345;
  for (uint16_t& word : noise) {
    state = state * 1664525U + 1013904223U;
    word = static_cast<uint16_t>(0x3c00U | (state >> 31) << 15 | ((state >> 8) & 0x03ffU));
  }
  for (DeviceMemory* memory : {a.get(), b.get()}) {
    const auto piece = static_cast<int64_t>(noise.size() * sizeof(noise[0]));
    for (int64_t at = 0; at < memory->bytes(); at += piece) {
      const int64_t size = std::min(piece, memory->bytes() - at);
      SGA_TRY(device.write(memory->data() + at,
                           std::as_bytes(std::span(noise)).first(static_cast<size_t>(size))));
    }
  }
  Stopwatch watch;
  int best = 0;
  float best_ms = std::numeric_limits<float>::infinity();
  const int repeats = s.flops() > 1e12 ? 3 : 8;
  for (int i = 0; i < count; ++i) {
    const auto run = [&] {
      return run_with(candidates[i].algo, nullptr, a->data(), b->data(), y->data(), y->data(),
                      workspace->data(), static_cast<int64_t>(candidates[i].workspaceSize), {})
          .ok();
    };
    if (candidates[i].state != CUBLAS_STATUS_SUCCESS) continue;
    if (i > 0 && watch.ms(1, run) > 2 * best_ms / static_cast<float>(repeats)) continue;
    if (i == 0) watch.ms(2, run);
    const float ms = watch.ms(repeats, run);
    // Ties go to the earlier candidate: the library thinks it better.
    if (ms < best_ms * 0.99F) {
      best = i;
      best_ms = ms;
    }
  }
  SGA_CUDA_TRY(cudaGetLastError());
  return best;
}

Status Matmul::run_with(const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream, const void* a,
                        const void* b, const void* c, void* y, void* workspace,
                        int64_t workspace_bytes, MatmulScales scales) const {
  const double one_f64 = 1;
  const double beta_f64 = adds_ ? 1 : 0;
  const float one_f32 = 1;
  const float beta_f32 = adds_ ? 1 : 0;
  const void* one = in_double_ ? static_cast<const void*>(&one_f64) : &one_f32;
  const void* beta = in_double_ ? static_cast<const void*>(&beta_f64) : &beta_f32;
  // Descriptions are plain data: a copy takes this call's pointers, the shared one stays as it is.
  cublasLtMatmulDescOpaque_t operation = *operation_;
  if (scales.a != nullptr) {
    SGA_TRY(
        blas_status(cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                                                   &scales.b, sizeof scales.b),
                    "scale"));
    SGA_TRY(
        blas_status(cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                                                   &scales.a, sizeof scales.a),
                    "scale"));
  }
  return blas_status(
      cublasLtMatmul(blas_, &operation, one, b, left_, a, right_, beta, c, out_, y, out_,
                     &algorithm, workspace, static_cast<size_t>(workspace_bytes), stream),
      "matmul");
}

Status Matmul::run(cudaStream_t stream, const void* a, const void* b, void* y, void* workspace,
                   MatmulScales scales, const void* c) const {
  return run_with(algorithm_, stream, a, b, c != nullptr ? c : y, y, workspace, workspace_bytes_,
                  scales);
}

}  // namespace sgactor::kernels::cuda
