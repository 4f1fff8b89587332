#pragma once
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/thread_pool.h"

#include <cstdint>
#include <string>

namespace sgactor::kernels::cpu {

/// C = op(A) op(B), or C += op(A) op(B); row major, leading dims in elements. Without `accumulate`
/// C need not be initialised. Every f32 element is summed in the same order whatever the cut into
/// tiles: bits depend on k alone.
struct Gemm {
  bool trans_a = false;
  bool trans_b = false;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t lda = 0;
  int64_t ldb = 0;
  int64_t ldc = 0;
  bool accumulate = false;
};

/// On the calling thread. `scratch` is 64-byte aligned and holds gemm_scratch_bytes().
void gemm(const KernelTable& kernels, const Gemm& g, const float* a, const float* b, float* c,
          float* scratch);
int64_t gemm_scratch_bytes();
/// Products are summed over blocks of this depth, one block's sum after the other: a product cut
/// into several along k at multiples of it has the same bits, if each accumulates.
int64_t gemm_block_depth(int64_t k);
/// On the calling thread, by OpenBLAS (which allocates its buffers once a thread).
void gemm(const Gemm& g, const double* a, const double* b, double* c);

/// A matmul over all threads of a pool: the operand that every tile needs is packed once, then
/// tiles along the longer side of C are taken one by one. A function of the shape and the family.
class ParallelGemm {
 public:
  ParallelGemm(const KernelTable& kernels, const Gemm& g);

  /// False for products so small that handing out tiles costs more than it saves.
  [[nodiscard]] bool worthwhile() const { return worthwhile_; }
  [[nodiscard]] int64_t scratch_bytes(int32_t num_threads) const;
  [[nodiscard]] int64_t num_tiles() const;
  void run(ThreadPool::Session& pool, const float* a, const float* b, float* c,
           std::byte* scratch) const;

 private:
  void pack_shared(ThreadPool::Session& pool, const float* source, int64_t k_begin, int64_t k_end,
                   float* shared) const;
  void run_tile(int64_t tile, const float* a, const float* b, float* c, int64_t k_begin,
                int64_t k_end, const float* shared, float* own) const;

  const KernelTable* kernels_;
  Gemm g_;
  bool by_rows_;  ///< tiles are rows of C and B is shared; else columns, and A
  bool worthwhile_;
  int64_t k_block_;        ///< depth of a packed block
  int64_t k_super_;        ///< depth of what is packed before tiles run; a multiple of k_block_
  int64_t tile_;           ///< rows or columns of a tile
  int64_t shared_extent_;  ///< columns of B or rows of A, padded to panels
};

/// Must run once before the first f64 gemm: one thread a call. Idempotent.
void init_blas();
/// "OpenBLAS 0.3.21 SkylakeX"
std::string blas_description();

}  // namespace sgactor::kernels::cpu
