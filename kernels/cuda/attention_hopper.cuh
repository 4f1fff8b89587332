#pragma once
// What attention's own kernels use of Hopper (sm_90a): barriers in shared memory, tiles brought by
// the bulk copy engine, products of a warpgroup. Tiles are 64 rows of 64 bf16, 8 KiB in the
// 128-byte swizzle, aligned to 1 KiB; a head of 128 numbers takes two of them, one behind the
// other.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace sgactor::kernels::cuda::hopper {

inline constexpr int kTile = 64;
inline constexpr int kTileBytes = kTile * kTile * 2;
inline constexpr int kWarpgroup = 128;

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Barriers: a phase ends when `arrivals` threads have arrived and all expected bytes have come.

__device__ __forceinline__ void init_barrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals));
}
/// After all inits, by the thread that did them, before a block-wide barrier.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void expect_bytes(uint64_t* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
__device__ __forceinline__ void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
/// One arrival for the warp, behind what each of its lanes has read.
__device__ __forceinline__ void arrive_as_warp(uint64_t* barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(barrier);
}
/// Until the phase of this parity has ended.
__device__ __forceinline__ void wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// The bulk copy engine.

/// A tile of a tensor [B, T, heads, K]: 64 numbers from `k` of one head at 64 times from `t`. What
/// lies behind the last time comes as zeros.
__device__ __forceinline__ void fetch_tile(void* to, const CUtensorMap& from, int k, int head,
                                           int t, int b, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(to)),
      "l"(&from), "r"(k), "r"(head), "r"(t), "r"(b), "r"(shared_address(barrier))
      : "memory");
}
/// All of a head's K numbers at 64 times.
template <int K>
__device__ __forceinline__ void fetch_rows(char* to, const CUtensorMap& from, int head, int t,
                                           int b, uint64_t* barrier) {
#pragma unroll
  for (int k = 0; k < K; k += kTile)
    fetch_tile(to + k / kTile * kTileBytes, from, k, head, t, b, barrier);
}
/// A multiple of 16 bytes, both ends aligned to 16.
__device__ __forceinline__ void fetch_line(void* to, const void* from, int bytes,
                                           uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
__device__ __forceinline__ void prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// The same in all lanes of a warp, and known to be.
__device__ __forceinline__ int this_warpgroup() {
  return __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
}

template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Products of a warpgroup: 64 rows of A (registers or shared memory) by N columns of B (shared
// memory), asynchronous. Registers in flight must not be touched before wait_products.

__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Until at most kOpen committed groups are in flight.
template <int kOpen>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kOpen) : "memory");
}
/// Keeps the compiler from moving accesses of `x` across.
template <int N>
__device__ __forceinline__ void pin(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

__device__ __forceinline__ void pin(uint32_t (&x)[4][4]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) asm volatile("" : "+r"(x[i / 4][i % 4])::"memory");
}

/// The low word of a tile's operand descriptor: address, and how much further the next 64 columns
/// are (read only where B is transposed and 128 wide). The high word is the same for all: groups of
/// 8 rows 1 KiB apart, 128-byte swizzle.
__device__ __forceinline__ uint32_t tile_operand(uint32_t address) {
  return (address & 0x3FFFF) >> 4 | uint32_t{kTileBytes >> 4} << 16;
}
inline constexpr uint32_t kOperandHigh = 1024 >> 4 | 1U << 30;
/// Steps of 16 along a tile's columns (the products' inner dim of an operand as it lies) and rows
/// (of a transposed one), in a descriptor's units.
__device__ __forceinline__ uint32_t column_step(int i) {
  return (i / 4) * (kTileBytes >> 4) + (i % 4) * (32 >> 4);
}
__device__ __forceinline__ uint32_t row_step(int i) { return i * (2048 >> 4); }

// d += a b. kTransposeB 0: B's tile has a column of B a row; 1: a row of B a row.

template <int kTransposeB>
__device__ __forceinline__ void multiply(float (&d)[32], const uint32_t (&a)[4], uint32_t b) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 a, b;\n"
      "setp.eq.b32 p, 0, 0;\n"
      "mov.b64 b, {%36, %38};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, b, p, 1, 1, %37;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(kTransposeB), "n"(kOperandHigh));
}

template <int kTransposeB>
__device__ __forceinline__ void multiply(float (&d)[64], const uint32_t (&a)[4], uint32_t b) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 a, b;\n"
      "setp.eq.b32 p, 0, 0;\n"
      "mov.b64 b, {%68, %70};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, b, p, 1, 1, %69;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(kTransposeB), "n"(kOperandHigh));
}

template <int kTransposeB>
__device__ __forceinline__ void multiply(float (&d)[32], uint32_t a, uint32_t b) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 a, b;\n"
      "setp.eq.b32 p, 0, 0;\n"
      "mov.b64 a, {%32, %35};\nmov.b64 b, {%33, %35};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31}, "
      "a, b, p, 1, 1, 0, %34;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a), "r"(b), "n"(kTransposeB), "n"(kOperandHigh));
}

// The same without reading d.

template <int kTransposeB>
__device__ __forceinline__ void multiply_fresh(float (&d)[32], uint32_t a, uint32_t b) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 a, b;\n"
      "setp.ne.b32 p, 0, 0;\n"
      "mov.b64 a, {%32, %35};\nmov.b64 b, {%33, %35};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31}, "
      "a, b, p, 1, 1, 0, %34;\n}\n"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]),
        "=f"(d[7]), "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]),
        "=f"(d[14]), "=f"(d[15]), "=f"(d[16]), "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]),
        "=f"(d[21]), "=f"(d[22]), "=f"(d[23]), "=f"(d[24]), "=f"(d[25]), "=f"(d[26]), "=f"(d[27]),
        "=f"(d[28]), "=f"(d[29]), "=f"(d[30]), "=f"(d[31])
      : "r"(a), "r"(b), "n"(kTransposeB), "n"(kOperandHigh));
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&both);
}
/// An accumulator of 64 columns as A of a product over them.
__device__ __forceinline__ void pack_columns(uint32_t (&a)[4][4], const float (&x)[32]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) a[i / 4][i % 4] = pack(x[2 * i], x[2 * i + 1]);
}
__device__ __forceinline__ float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace sgactor::kernels::cuda::hopper
