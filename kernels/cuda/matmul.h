#pragma once
#include "graph/base/dtype.h"
#include "kernels/cuda/device.h"

#include <cublasLt.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace sgactor::kernels::cuda {

/// y[b, M, N] = op(a) @ op(b), or y += that, or that plus c, rounded once. Row-major; batches lie
/// one after the other.
struct MatmulShape {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  bool trans_a = false, trans_b = false;
  DType operands = DType::kF32;
  DType operands_b = DType::kF32;  ///< of b, where a is an 8-bit float; else as `operands`
  DType result = DType::kF32;
  bool accumulate = false;
  bool adds = false;       ///< c, which lies as y does
  bool fast_sums = false;  ///< 8 bits: sums stay in the matrix unit, in fewer than 24 bits
  // Elements from row to row, where rows are not dense; 0: dense.
  int64_t stride_a = 0, stride_b = 0, stride_y = 0;
  // Elements of an operand from batch to batch, where batches do not lie so; 0: one after the
  // other.
  int64_t step_a = 0, step_b = 0;

  [[nodiscard]] bool is_scaled() const {
    return operands == DType::kF8E4M3 || operands == DType::kF8E5M2;
  }
  [[nodiscard]] double flops() const {
    return 2.0 * static_cast<double>(batch) * static_cast<double>(m) * static_cast<double>(n) *
           static_cast<double>(k);
  }
  /// "bf16 bf16 nt 1x4096x2048x2048": the row's name in the matmul table.
  [[nodiscard]] std::string name() const;
};

/// What the operands of a product of 8-bit floats are multiplied by, on the device.
struct MatmulScales {
  const float* a = nullptr;
  const float* b = nullptr;
};

/// A product of fixed shapes with cuBLASLt's algorithm chosen: by the device's table, else the
/// library's first candidate without split sums in place, so that results are reproducible. f32 in
/// full precision, 8- and 16-bit floats with f32 sums. Immutable and thread-safe.
class Matmul {
 public:
  /// Measures candidates if the table asks for it (allocates and frees device memory then; where
  /// there is none, a candidate with a small workspace gets the row, with a warning).
  /// Errors: kUnsupported if the library has no algorithm for the types or shapes.
  static Result<std::shared_ptr<const Matmul>> create(CudaDevice& device, const MatmulShape& shape);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  [[nodiscard]] int64_t workspace_bytes() const { return workspace_bytes_; }
  /// `workspace`: workspace_bytes(), aligned to 256. `c`: of a shape that adds; may be y.
  Status run(cudaStream_t stream, const void* a, const void* b, void* y, void* workspace,
             MatmulScales scales = {}, const void* c = nullptr) const;

 private:
  Matmul() = default;
  Status describe(const MatmulShape& shape);
  Status choose(CudaDevice& device, const MatmulShape& shape);
  Status run_with(const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream, const void* a,
                  const void* b, const void* c, void* y, void* workspace, int64_t workspace_bytes,
                  MatmulScales scales) const;
  Result<int> measure(CudaDevice& device, const MatmulShape& shape,
                      const cublasLtMatmulHeuristicResult_t* candidates, int count) const;

  cublasLtHandle_t blas_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  // As the library sees them, column-major: left is our b, right is our a.
  cublasLtMatrixLayout_t left_ = nullptr;
  cublasLtMatrixLayout_t right_ = nullptr;
  cublasLtMatrixLayout_t out_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
  int64_t workspace_bytes_ = 0;
  bool in_double_ = false;
  bool adds_ = false;  ///< what was in y, or c
};

/// A product by the library, or by a plain kernel for the types and shapes that it refuses. `c`: of
/// a shape that adds.
struct Product {
  std::function<Status(cudaStream_t stream, const void* a, const void* b, const void* c, void* y,
                       void* workspace)>
      run;
  int64_t workspace_bytes = 0;
  bool plain = false;
};
/// Errors: kUnsupported for types other than f64, f32 and bf16; kDeviceFault.
Result<Product> create_product(CudaDevice& device, const MatmulShape& shape);

/// Into how many parts of its sum a product of an m x n result is cut so that a small result keeps
/// the GPU busy, each a batch; 1: none.
int64_t parts_of_sum(int64_t m, int64_t n, int64_t k);

/// A product of 8-bit floats with its scales: by the library where both operands have the summed
/// dim last and every dim is a multiple of 16, else by a plain kernel. Sums that parts_of_sum cuts
/// are added in the order of their parts. y is f32 or bf16. `c`: of a shape that adds.
struct ScaledProduct {
  std::function<Status(cudaStream_t stream, const void* a, const void* b, const void* c, void* y,
                       void* workspace, MatmulScales scales)>
      run;
  int64_t workspace_bytes = 0;
  bool plain = false;
};
/// Pre: shape.is_scaled(), one batch. Errors: kUnsupported for other results; kDeviceFault.
Result<ScaledProduct> create_scaled_product(CudaDevice& device, const MatmulShape& shape);

}  // namespace sgactor::kernels::cuda
